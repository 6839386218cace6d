import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'

import { Sandbox, api, create, eventually, rejects, sandbox, sdk } from './sdk.mjs'

const missing = 'i0000000000000000000x'
const ids = (list) => list.map((s) => s.sandboxId)

// listed collects all pages of a list.
async function listed(opts) {
  const pages = Sandbox.list(opts)
  const all = []
  while (pages.hasNext) all.push(...(await pages.nextItems()))
  return all
}

describe('lifecycle', () => {
  test('create, isRunning, kill', async () => {
    const sb = await create()
    assert.match(sb.sandboxId, /^[a-z0-9]+$/)
    assert.equal(await sb.isRunning(), true)
    assert.equal(await sb.kill(), true)
    assert.equal(await sb.isRunning(), false)
  })

  test('the template that the package asks for', async (t) => {
    const sb = await Sandbox.create({ timeoutMs: 60_000 })
    t.after(() => sb.kill())
    assert.equal((await sb.commands.run('echo ok')).stdout, 'ok\n')
  })

  test('kill twice, kill what never was', async () => {
    const sb = await create()
    assert.equal(await sb.kill(), true)
    assert.equal(await sb.kill(), false)
    assert.equal(await Sandbox.kill(missing), false)
  })

  test('getInfo', async (t) => {
    const before = Date.now()
    const sb = await sandbox(t, { timeoutMs: 200_000, metadata: { purpose: 'info', 'a b': 'c&d=é' } })
    const info = await sb.getInfo()
    assert.equal(info.sandboxId, sb.sandboxId)
    assert.equal(info.state, 'running')
    assert.deepEqual(info.metadata, { purpose: 'info', 'a b': 'c&d=é' })
    assert.ok(Math.abs(info.startedAt - before) < 60_000, `started at ${info.startedAt}`)
    const left = info.endAt - info.startedAt
    assert.ok(Math.abs(left - 200_000) < 10_000, `lives ${left} ms`)
    assert.ok(info.cpuCount >= 1)
    assert.ok(info.memoryMB >= 128)
    assert.match(info.envdVersion, /^\d+\.\d+\.\d+$/)
    assert.deepEqual(await Sandbox.getInfo(sb.sandboxId), await sb.getInfo())
  })

  test('connect to a running sandbox', async (t) => {
    const sb = await sandbox(t)
    await sb.files.write('here', 'it is')
    const other = await Sandbox.connect(sb.sandboxId)
    assert.equal(other.sandboxId, sb.sandboxId)
    assert.equal(await other.files.read('here'), 'it is')
    assert.equal((await other.commands.run('cat here')).stdout, 'it is')
  })

  test('connect extends and never shortens', async (t) => {
    const sb = await sandbox(t, { timeoutMs: 100_000 })
    const end = (await sb.getInfo()).endAt
    await Sandbox.connect(sb.sandboxId, { timeoutMs: 10_000 })
    assert.ok((await sb.getInfo()).endAt >= end, 'connect shortened the life')
    await Sandbox.connect(sb.sandboxId, { timeoutMs: 900_000 })
    assert.ok((await sb.getInfo()).endAt - end > 600_000, 'connect did not extend the life')
  })

  test('setTimeout lengthens and shortens', async (t) => {
    const sb = await sandbox(t, { timeoutMs: 60_000 })
    const left = async () => (await sb.getInfo()).endAt - Date.now()
    await sb.setTimeout(600_000)
    assert.ok(Math.abs((await left()) - 600_000) < 30_000)
    await Sandbox.setTimeout(sb.sandboxId, 120_000)
    assert.ok(Math.abs((await left()) - 120_000) < 30_000)
  })

  test('a sandbox ends at its timeout', async (t) => {
    const sb = await sandbox(t, { timeoutMs: 60_000 })
    const running = sb.commands.run('sleep 300', { timeoutMs: 0 })
    const failed = rejects(running, 'SandboxError')
    await sb.setTimeout(1_000)
    await eventually('ended', async () => !(await sb.isRunning()))
    await failed
    await rejects(Sandbox.getInfo(sb.sandboxId), 'NotFoundError')
    await rejects(Sandbox.connect(sb.sandboxId), 'NotFoundError')
    await rejects(sb.commands.run('true'), 'SandboxNotFoundError')
    await rejects(sb.commands.list(), 'TimeoutError')
    await rejects(sb.files.read('x'), 'TimeoutError')
    assert.equal(await sb.kill(), false)
  })

  test('kill ends what runs', async (t) => {
    const sb = await sandbox(t)
    const run = await sb.commands.run('echo up; sleep 300', { background: true, timeoutMs: 0 })
    await eventually('up', () => run.stdout.includes('up'))
    const failed = rejects(run.wait(), 'SandboxError')
    await sb.kill()
    await failed
  })

  test('what is not there', async () => {
    await rejects(Sandbox.getInfo(missing), 'NotFoundError')
    await rejects(Sandbox.getInfo(missing), 'SandboxNotFoundError')
    await rejects(Sandbox.connect(missing), 'SandboxNotFoundError')
    await rejects(Sandbox.setTimeout(missing, 60_000), 'SandboxNotFoundError')
    await rejects(Sandbox.pause(missing), 'SandboxNotFoundError')
    await rejects(Sandbox.getMetrics(missing), 'SandboxError')
    await rejects(Sandbox.create('no-such-template-here'), 'SandboxError')
  })

  test('what is not supported says so', async (t) => {
    const sb = await sandbox(t)
    await rejects(create({ timeoutMs: 1000 * 3600 * 24 * 365 }), 'SandboxError')
    assert.equal(await sb.isRunning(), true)
  })

  test('pages of the list', async (t) => {
    const mark = randomUUID()
    const own = []
    for (let i = 0; i < 3; i++) own.push((await sandbox(t, { metadata: { mark, n: String(i) } })).sandboxId)
    const pages = Sandbox.list({ query: { metadata: { mark } }, limit: 2 })
    const first = await pages.nextItems()
    assert.equal(first.length, 2)
    assert.equal(pages.hasNext, true)
    const second = await pages.nextItems()
    assert.equal(second.length, 1)
    assert.equal(pages.hasNext, false)
    assert.deepEqual(ids([...first, ...second]), own.reverse()) // youngest first
    assert.deepEqual(first[0].metadata, { mark, n: '2' })
  })

  test('filters of the list', async (t) => {
    const mark = randomUUID()
    const strange = { mark, 'a b': 'c&d=100%', ключ: 'значение 🎉' }
    const a = await sandbox(t, { metadata: strange })
    const b = await sandbox(t, { metadata: { mark, other: 'x' } })
    assert.deepEqual(ids(await listed({ query: { metadata: strange } })), [a.sandboxId])
    assert.deepEqual(ids(await listed({ query: { metadata: { mark, other: 'x' } } })), [b.sandboxId])
    assert.deepEqual(await listed({ query: { metadata: { mark, other: 'y' } } }), [])
    assert.deepEqual(ids(await listed({ query: { metadata: { mark }, state: ['running'] } })).sort(),
      [a.sandboxId, b.sandboxId].sort())
    assert.deepEqual(await listed({ query: { metadata: { mark }, state: ['paused'] } }), [])
    assert.ok(ids(await listed({ query: { state: ['running', 'paused'] } })).includes(a.sandboxId))
    await b.kill()
    assert.deepEqual(ids(await listed({ query: { metadata: { mark } } })), [a.sandboxId])
  })

  test('metrics', async (t) => {
    const sb = await sandbox(t)
    await sb.commands.run('true')
    const list = await eventually('measured', async () => {
      const got = await sb.getMetrics()
      return got.length > 0 && got
    })
    const m = list.at(-1)
    assert.ok(m.cpuCount >= 1)
    assert.ok(m.memTotal > 0 && m.memUsed >= 0 && m.memUsed <= m.memTotal, JSON.stringify(m))
    assert.ok(m.diskTotal >= 0 && m.diskUsed >= 0)
    assert.ok(Math.abs(m.timestamp - Date.now()) < 60_000)
  })

  test('a wrong key', async (t) => {
    const sb = await sandbox(t)
    const apiKey = `e2b_${'0'.repeat(40)}`
    await rejects(create({ apiKey }), 'AuthenticationError')
    await rejects(Sandbox.connect(sb.sandboxId, { apiKey }), 'AuthenticationError')
    await rejects(Sandbox.getInfo(sb.sandboxId, { apiKey }), 'AuthenticationError')
    await rejects(Sandbox.kill(sb.sandboxId, { apiKey }), 'AuthenticationError')
    await rejects(Sandbox.list({ apiKey }).nextItems(), 'AuthenticationError')
    assert.equal((await api('GET', '/v2/sandboxes', undefined, { 'X-API-Key': '' })).status, 401)
    assert.equal(await sb.isRunning(), true)
  })

  test('the routes of older and newer packages', async (t) => {
    for (const [path, body] of [
      ['/sandboxes', { templateID: 'base', timeout: 60 }],
      ['/sandboxes', { templateID: 'base', timeout: 60, secure: false }],
      ['/v2/sandboxes', { templateID: 'base' }],
    ]) {
      const res = await api('POST', path, body)
      const made = await res.json()
      assert.equal(res.status, 201, JSON.stringify(made))
      t.after(() => Sandbox.kill(made.sandboxID))
      assert.equal(typeof made.clientID, 'string')
      assert.equal(typeof made.templateID, 'string')
      assert.ok(made.envdAccessToken, `${path}: every sandbox has a token`)
      for (const version of ['', '/v2']) {
        const again = await api('POST', `${version}/sandboxes/${made.sandboxID}/connect`, { timeout: 30 })
        assert.equal(again.status, 200)
        assert.equal((await again.json()).envdAccessToken, made.envdAccessToken)
      }
      assert.equal((await api('POST', `/sandboxes/${made.sandboxID}/refreshes`, { duration: 20 })).status, 204)
    }
    const bad = await api('POST', '/sandboxes', { templateID: 'base', timeout: -1 })
    assert.equal(bad.status, 400)
    assert.equal((await bad.json()).code, 400)
  })

  test('classes of errors are those of the package', () => {
    for (const name of ['NotFoundError', 'SandboxNotFoundError', 'FileNotFoundError', 'InvalidArgumentError',
      'TimeoutError', 'CommandExitError', 'AuthenticationError', 'RateLimitError']) {
      assert.ok(sdk[name], name)
    }
  })
})
