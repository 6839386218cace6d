import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'

import { create, envdPort, eventually, long, longest, noise, rejects, request, sdk, sha256 } from './sdk.mjs'

const names = (list) => list.map((e) => e.name)
const paths = (list) => list.map((e) => e.path)

// collect reads a stream to its end.
async function collect(stream) {
  const parts = []
  for await (const part of stream) parts.push(part)
  return Buffer.concat(parts)
}

describe('files', () => {
  let sb
  let home // a fresh directory for each test
  let count = 0
  before(async () => {
    sb = await create({ timeoutMs: 300_000 })
  })
  after(() => sb?.kill())
  const fresh = async () => {
    home = `/home/user/t${count++}`
    await sb.files.makeDir(home)
    return home
  }

  test('text', async () => {
    const dir = await fresh()
    const info = await sb.files.write(`${dir}/a.txt`, 'héllo 🎉\n')
    assert.equal(info.path, `${dir}/a.txt`)
    assert.equal(info.name, 'a.txt')
    assert.equal(info.type, 'file')
    assert.equal(await sb.files.read(`${dir}/a.txt`), 'héllo 🎉\n')
    await sb.files.write(`${dir}/a.txt`, 'shorter')
    assert.equal(await sb.files.read(`${dir}/a.txt`), 'shorter')
    assert.equal((await sb.commands.run(`cat ${dir}/a.txt`)).stdout, 'shorter')
  })

  test('bytes', async () => {
    const dir = await fresh()
    const data = Buffer.from(Array.from({ length: 256 }, (_, i) => i))
    await sb.files.write(`${dir}/b`, data.buffer.slice(data.byteOffset, data.byteOffset + data.length))
    assert.deepEqual(Buffer.from(await sb.files.read(`${dir}/b`, { format: 'bytes' })), data)
    const blob = await sb.files.read(`${dir}/b`, { format: 'blob' })
    assert.deepEqual(Buffer.from(await blob.arrayBuffer()), data)
    assert.deepEqual(await collect(await sb.files.read(`${dir}/b`, { format: 'stream' })), data)
    await sb.files.write(`${dir}/c`, new Blob([data]))
    assert.deepEqual(Buffer.from(await sb.files.read(`${dir}/c`, { format: 'bytes' })), data)
  })

  test('empty', async () => {
    const dir = await fresh()
    await sb.files.write(`${dir}/empty`, '')
    assert.equal(await sb.files.read(`${dir}/empty`), '')
    assert.equal((await sb.files.read(`${dir}/empty`, { format: 'bytes' })).length, 0)
    assert.equal((await sb.files.getInfo(`${dir}/empty`)).size, 0)
  })

  test('forms of upload', async () => {
    const dir = await fresh()
    const data = noise(300_000)
    const buffer = () => data.buffer.slice(data.byteOffset, data.byteOffset + data.length)
    const forms = {
      multipart: [buffer(), {}],
      octets: [buffer(), { useOctetStream: true }],
      gzip: [buffer(), { gzip: true }],
      stream: [new Blob([data]).stream(), {}],
      zipped: [new Blob([data]).stream(), { gzip: true }],
    }
    for (const [form, [body, opts]] of Object.entries(forms)) {
      await sb.files.write(`${dir}/${form}`, body, opts)
      const got = await sb.files.read(`${dir}/${form}`, { format: 'bytes', gzip: form === 'gzip' })
      assert.equal(sha256(got), sha256(data), form)
    }
  })

  test('100 MB', long, async () => {
    const dir = await fresh()
    const data = noise(100 << 20)
    const sum = sha256(data)
    await sb.files.write(`${dir}/big`, new Blob([data]).stream(), { requestTimeoutMs: 60_000 })
    assert.equal((await sb.files.getInfo(`${dir}/big`)).size, data.length)
    assert.equal((await sb.commands.run(`sha256sum < ${dir}/big`)).stdout.slice(0, 64), sum)
    const got = await sb.files.read(`${dir}/big`, { format: 'bytes', requestTimeoutMs: 60_000 })
    assert.equal(got.length, data.length)
    assert.equal(sha256(got), sum)
    await sb.files.remove(`${dir}/big`)
  })

  test('100 MB as multipart, read as a stream', longest, async () => {
    const dir = await fresh()
    const data = noise(100 << 20)
    await sb.files.write(`${dir}/big`, new Blob([data]), { requestTimeoutMs: 60_000 })
    let size = 0
    for await (const part of await sb.files.read(`${dir}/big`, { format: 'stream' })) size += part.length
    assert.equal(size, data.length)
    await sb.files.remove(`${dir}/big`)
  })

  test('many at once', async () => {
    const dir = await fresh()
    const list = Array.from({ length: 40 }, (_, i) => ({ path: `${dir}/d${i % 5}/f${i}`, data: `number ${i}` }))
    const infos = await sb.files.write(list)
    assert.deepEqual(paths(infos).sort(), list.map((f) => f.path).sort())
    for (const { path, data } of [list[0], list[17], list[39]]) assert.equal(await sb.files.read(path), data)
    assert.deepEqual(await sb.files.write([]), [])
  })

  test('names in every script', async () => {
    const dir = await fresh()
    const list = ['naïve.txt', '日本語.txt', 'имя', '🎉🎊.bin', 'e\u0301 not \u00e9', 'עברית', 'a\u202eb']
    for (const name of list) await sb.files.write(`${dir}/${name}`, name)
    assert.deepEqual(names(await sb.files.list(dir)).sort(), [...list].sort())
    for (const name of list) assert.equal(await sb.files.read(`${dir}/${name}`), name)
  })

  test('hostile names', async () => {
    const dir = await fresh()
    const list = ['-rf', ' lead and trail ', 'new\nline', 'tab\there', `it's "quoted"`, 'back\\slash', '100%25%2F',
      '$(touch pwned)', '`id`', '; rm -rf ~', '*', '?', '...', '..x', '#hash?query&a=b', 'a'.repeat(255),
      'CON', '+plus+', 'semi;filename="x"', '<b>', '%']
    for (const name of list) await sb.files.write(`${dir}/${name}`, name)
    // Not as multipart: its header must not have control characters.
    list.push('\u0001\u001b[31m\u007f')
    await sb.files.write(`${dir}/${list.at(-1)}`, list.at(-1), { useOctetStream: true })
    assert.deepEqual(names(await sb.files.list(dir)).sort(), [...list].sort())
    for (const name of list) {
      assert.equal(await sb.files.read(`${dir}/${name}`), name)
      const info = await sb.files.getInfo(`${dir}/${name}`)
      assert.equal(info.name, name)
      assert.equal(info.path, `${dir}/${name}`)
    }
    for (const name of list) await sb.files.remove(`${dir}/${name}`)
    assert.deepEqual(await sb.files.list(dir), [])
  })

  test('names that cannot be', async () => {
    const dir = await fresh()
    await rejects(sb.files.write(`${dir}/${'a'.repeat(256)}`, 'x'), 'SandboxError')
    await rejects(sb.files.write(`${dir}/nul\u0000byte`, 'x'), 'SandboxError')
    await rejects(sb.files.read(`${dir}/nul\u0000byte`), 'SandboxError')
    await rejects(sb.files.getInfo(`${dir}/nul\u0000byte`), 'SandboxError')
    await rejects(sb.files.write(dir, 'x'), 'InvalidArgumentError')
    assert.deepEqual(await sb.files.list(dir), [])
  })

  test('paths relative to the home', async () => {
    await sb.files.write('relative.txt', 'r')
    assert.equal(await sb.files.read('/home/user/relative.txt'), 'r')
    assert.equal(await sb.files.read('~/relative.txt'), 'r')
    assert.equal(await sb.files.read('./x/../relative.txt'), 'r')
    assert.equal((await sb.files.getInfo('relative.txt')).path, '/home/user/relative.txt')
  })

  test('what is not there', async () => {
    const dir = await fresh()
    await rejects(sb.files.read(`${dir}/none`), 'FileNotFoundError')
    await rejects(sb.files.read(`${dir}/none`), 'NotFoundError')
    await rejects(sb.files.read(`${dir}/none`, { format: 'stream' }), 'FileNotFoundError')
    await rejects(sb.files.getInfo(`${dir}/none`), 'FileNotFoundError')
    await rejects(sb.files.list(`${dir}/none`), 'FileNotFoundError')
    await rejects(sb.files.rename(`${dir}/none`, `${dir}/other`), 'FileNotFoundError')
    await rejects(sb.files.watchDir(`${dir}/none`, () => {}), 'FileNotFoundError')
    assert.equal(await sb.files.exists(`${dir}/none`), false)
    await sb.files.remove(`${dir}/none`)
    await rejects(sb.files.read(dir), 'InvalidArgumentError')
    await sb.files.write(`${dir}/file`, '')
    await rejects(sb.files.list(`${dir}/file`), 'InvalidArgumentError')
    await rejects(sb.files.makeDir(`${dir}/file`), 'InvalidArgumentError')
    await rejects(sb.files.watchDir(`${dir}/file`, () => {}), 'InvalidArgumentError')
  })

  test('directories', async () => {
    const dir = await fresh()
    assert.equal(await sb.files.makeDir(`${dir}/a/b/c`), true)
    assert.equal(await sb.files.makeDir(`${dir}/a/b/c`), false)
    await sb.files.write(`${dir}/a/b/file`, 'x')
    assert.equal(await sb.files.exists(`${dir}/a/b`), true)
    assert.deepEqual(paths(await sb.files.list(`${dir}/a`)), [`${dir}/a/b`])
    assert.deepEqual(paths(await sb.files.list(`${dir}/a`, { depth: 2 })),
      [`${dir}/a/b`, `${dir}/a/b/c`, `${dir}/a/b/file`])
    const [b] = await sb.files.list(`${dir}/a`)
    assert.equal(b.type, sdk.FileType.DIR)
    await rejects(sb.files.list(dir, { depth: 0 }), 'InvalidArgumentError')
    const moved = await sb.files.rename(`${dir}/a/b`, `${dir}/z`)
    assert.equal(moved.path, `${dir}/z`)
    assert.equal(await sb.files.exists(`${dir}/a/b`), false)
    assert.equal(await sb.files.read(`${dir}/z/file`), 'x')
    await sb.files.remove(`${dir}/z`)
    assert.equal(await sb.files.exists(`${dir}/z`), false)
  })

  test('rename replaces a file and makes parents', async () => {
    const dir = await fresh()
    await sb.files.write([{ path: `${dir}/from`, data: 'new' }, { path: `${dir}/to`, data: 'old' }])
    await sb.files.rename(`${dir}/from`, `${dir}/to`)
    assert.equal(await sb.files.read(`${dir}/to`), 'new')
    await sb.files.rename(`${dir}/to`, `${dir}/p/q/to`)
    assert.equal(await sb.files.read(`${dir}/p/q/to`), 'new')
  })

  test('getInfo', async () => {
    const dir = await fresh()
    await sb.files.write(`${dir}/f`, '12345')
    await sb.commands.run(`chmod 640 f; ln -s f link; ln -s nowhere broken`, { cwd: dir })
    const info = await sb.files.getInfo(`${dir}/f`)
    assert.equal(info.size, 5)
    assert.equal(info.type, sdk.FileType.FILE)
    assert.equal(info.mode, 0o640)
    assert.equal(info.permissions, '-rw-r-----')
    assert.equal(info.owner, 'user')
    assert.equal(info.group, 'user')
    assert.ok(Math.abs(info.modifiedTime - Date.now()) < 60_000)
    const link = await sb.files.getInfo(`${dir}/link`)
    assert.equal(link.symlinkTarget, `${dir}/f`)
    assert.equal(link.type, sdk.FileType.FILE)
    assert.equal(await sb.files.read(`${dir}/link`), '12345')
    const listed = Object.fromEntries((await sb.files.list(dir)).map((e) => [e.name, e]))
    assert.equal(listed.link.symlinkTarget, `${dir}/f`)
    assert.equal(listed.f.size, 5)
    assert.equal(listed.broken, undefined) // the package drops entries without a type
    const d = await sb.files.getInfo(dir)
    assert.equal(d.type, sdk.FileType.DIR)
    assert.equal(d.permissions, 'drwxr-xr-x')
  })

  test('owner and user', async () => {
    const dir = await fresh()
    await sb.files.write(`${dir}/mine/f`, 'x', { user: 'user' })
    assert.equal((await sb.commands.run(`stat -c '%U %a' mine mine/f`, { cwd: dir })).stdout, 'user 755\nuser 644\n')
    await rejects(sb.files.write(`${dir}/g`, 'x', { user: 'no-such-user' }), 'AuthenticationError')
    await rejects(sb.files.list(dir, { user: 'no-such-user' }), 'AuthenticationError')
    if (process.getuid() === 0) { // else the sandbox has one identity
      await sb.files.write('by-root', 'x', { user: 'root' })
      assert.equal((await sb.files.getInfo('/root/by-root', { user: 'root' })).owner, 'root')
    }
  })

  test('metadata', async (t) => {
    const dir = await fresh()
    const info = await sb.files.write(`${dir}/m`, 'x', { metadata: { author: 'me', 'long-key': 'a b' } })
    assert.deepEqual(info.metadata, { author: 'me', 'long-key': 'a b' })
    assert.deepEqual((await sb.files.getInfo(`${dir}/m`)).metadata, info.metadata)
    const [entry] = await sb.files.list(dir)
    assert.deepEqual(entry.metadata, info.metadata)
    await sb.files.write(`${dir}/m`, 'y', { metadata: { other: '1' } })
    assert.deepEqual((await sb.files.getInfo(`${dir}/m`)).metadata, { other: '1' })
    await sb.files.write(`${dir}/m`, 'z')
    assert.deepEqual((await sb.files.getInfo(`${dir}/m`)).metadata ?? {}, {})
  })

  test('ranges and plain requests', async () => {
    const dir = await fresh()
    await sb.files.write(`${dir}/r`, '0123456789')
    const get = (headers) => request(sb, envdPort, `/files?path=${dir}/r`, { headers })
    const token = { 'X-Access-Token': sb.envdAccessToken }
    const part = await get({ ...token, Range: 'bytes=2-4' })
    assert.equal(part.status, 206)
    assert.equal(await part.text(), '234')
    assert.equal((await get({ ...token, Range: 'bytes=50-' })).status, 416)
    assert.equal((await get({})).status, 401)
    const whole = await get(token)
    assert.equal(whole.status, 200)
    assert.match(whole.headers.get('content-disposition'), /filename/)
  })
})

describe('watching', () => {
  let sb
  before(async () => {
    sb = await create({ timeoutMs: 300_000 })
  })
  after(() => sb?.kill())

  const has = (events, type, name) => () => events.some((e) => e.type === type && e.name === name)
  const { CREATE, WRITE, REMOVE, RENAME } = sdk.FilesystemEventType

  test('create, write, rename, remove', async () => {
    await sb.files.makeDir('w')
    const events = []
    const watch = await sb.files.watchDir('w', (e) => { events.push(e) })
    await sb.commands.run('echo 1 > f; echo 2 >> f; mv f g; rm g', { cwd: 'w' })
    await eventually('created', has(events, CREATE, 'f'))
    await eventually('written', has(events, WRITE, 'f'))
    await eventually('renamed', has(events, RENAME, 'f'))
    await eventually('there under its new name', has(events, CREATE, 'g'))
    await eventually('removed', has(events, REMOVE, 'g'))
    await watch.stop()
    const heard = events.length
    await sb.files.write('w/later', 'x')
    await sb.files.remove('w/later')
    assert.equal(events.length, heard)
  })

  test('writes through the package', async () => {
    await sb.files.makeDir('p')
    const events = []
    const watch = await sb.files.watchDir('p', (e) => { events.push(e) })
    await sb.files.write('p/new', 'x')
    await eventually('created', () => events.some((e) => e.name === 'new'))
    await sb.files.write('p/new', 'more')
    await sb.files.remove('p/new')
    await eventually('removed', has(events, REMOVE, 'new'))
    await watch.stop()
  })

  test('only the directory itself unless recursive', async () => {
    await sb.files.makeDir('flat/sub')
    const events = []
    const watch = await sb.files.watchDir('flat', (e) => { events.push(e) })
    await sb.files.write('flat/sub/deep', 'x')
    await sb.files.write('flat/end', 'x')
    await eventually('end', () => events.some((e) => e.name === 'end'))
    assert.equal(events.find((e) => e.name.includes('deep')), undefined)
    await watch.stop()
  })

  test('recursive', async () => {
    await sb.files.makeDir('deep/a/b')
    const events = []
    const watch = await sb.files.watchDir('deep', (e) => { events.push(e) }, { recursive: true })
    await sb.files.write('deep/a/b/f', 'x')
    await eventually('heard', () => events.some((e) => e.name === 'a/b/f'))
    await sb.files.makeDir('deep/later')
    await eventually('made', () => events.some((e) => e.name === 'later'))
    await sb.files.write('deep/later/g', 'x')
    await eventually('heard', () => events.some((e) => e.name === 'later/g'))
    await watch.stop()
  })

  test('with the entry', async () => {
    await sb.files.makeDir('entry')
    const events = []
    const watch = await sb.files.watchDir('entry', (e) => { events.push(e) }, { includeEntry: true })
    await sb.commands.run('echo hello > stays', { cwd: 'entry' })
    const event = await eventually('with entry', () => events.find((e) => e.name === 'stays' && e.entry))
    assert.equal(event.entry.path, '/home/user/entry/stays')
    assert.equal(event.entry.type, 'file')
    await watch.stop()
  })

  test('onExit', async () => {
    await sb.files.makeDir('exit')
    let left = false
    const watch = await sb.files.watchDir('exit', () => {}, { onExit: () => { left = true } })
    await watch.stop()
    await eventually('left', () => left)
  })
})
