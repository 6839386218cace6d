import assert from 'node:assert/strict'
import { request as httpRequest } from 'node:http'
import { after, before, describe, test } from 'node:test'

import { base, create, eventually, long, noise, request, route, sandbox, sha256, shared, undici, within } from './sdk.mjs'

// server answers over HTTP and echoes WebSocket messages. It runs inside.
const server = `
import { createHash } from 'node:crypto'
import { createServer } from 'node:http'
const server = createServer(async (req, res) => {
  if (req.url === '/stream') {
    res.write('first\\n')
    globalThis.go = () => res.end('second\\n')
    return
  }
  if (req.url === '/go') { globalThis.go(); return res.end('gone') }
  if (req.url === '/hash') {
    const hash = createHash('sha256')
    for await (const part of req) hash.update(part)
    return res.end(hash.digest('hex'))
  }
  res.setHeader('X-Seen', 'yes')
  res.writeHead(req.url === '/teapot' ? 418 : 200)
  res.end(JSON.stringify({ method: req.method, url: req.url, headers: req.headers }))
})
server.on('upgrade', (req, socket) => {
  const key = req.headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
  socket.write('HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n' +
    'Sec-WebSocket-Accept: ' + createHash('sha1').update(key).digest('base64') + '\\r\\n\\r\\n')
  socket.on('error', () => {})
  socket.on('data', (d) => { // short masked text frames only
    if ((d[0] & 15) !== 1) return socket.end()
    const n = d[1] & 127
    const text = d.subarray(6, 6 + n).map((b, i) => b ^ d[2 + (i & 3)])
    socket.write(Buffer.concat([Buffer.from([0x81, n]), text]))
  })
})
server.listen(3000, '127.0.0.1', () => console.log('listening'))
`

describe('ports', () => {
  let sb
  before(async () => {
    sb = await create({ timeoutMs: 300_000 })
    await sb.files.write('server.mjs', server)
    const run = await sb.commands.run('node server.mjs', { background: true, timeoutMs: 0 })
    run.wait().catch(() => {})
    await eventually('listening', () => {
      assert.equal(run.exitCode, undefined, run.stderr)
      return run.stdout.includes('listening')
    })
  })
  after(() => sb?.kill())

  test('getHost', () => {
    assert.match(sb.getHost(3000), new RegExp(`^3000-${sb.sandboxId}\\.`))
  })

  test('a server inside', async () => {
    const res = await request(sb, 3000, '/a%2Fb/?q=1&r=%20', { method: 'PUT', body: 'x', headers: { 'X-Own': 'kept' } })
    assert.equal(res.status, 200)
    assert.equal(res.headers.get('x-seen'), 'yes')
    const seen = await res.json()
    assert.equal(seen.method, 'PUT')
    assert.equal(seen.url, '/a%2Fb/?q=1&r=%20')
    assert.equal(seen.headers['x-own'], 'kept')
    assert.equal((await request(sb, 3000, '/teapot')).status, 418)
  })

  test('paths of the control plane belong to the server inside', async () => {
    for (const path of ['/sandboxes', '/v2/sandboxes', '/health', '/init', '/files?path=/etc/passwd']) {
      const res = await request(sb, 3000, path)
      assert.equal(res.status, 200, path)
      assert.equal((await res.json()).url, path)
    }
  })

  test('by the name of the host', { skip: !shared && 'this way has names of its own' }, async () => {
    const { hostname, port } = new URL(process.env.E2B_SANDBOX_URL)
    const res = await new Promise((resolve, reject) => {
      httpRequest({ hostname, port, path: '/named', headers: { Host: sb.getHost(3000) } }, resolve)
        .on('error', reject).end()
    })
    const body = []
    for await (const part of res) body.push(part)
    assert.equal(res.statusCode, 200)
    assert.equal(JSON.parse(Buffer.concat(body)).url, '/named')
  })

  test('large bodies', long, async () => {
    const data = noise(20 << 20)
    const res = await request(sb, 3000, '/hash', { method: 'POST', body: data })
    assert.equal(await res.text(), sha256(data))
  })

  test('answers are not held back', async () => {
    const res = await request(sb, 3000, '/stream')
    const reader = res.body.getReader()
    const first = await within(20_000, 'the first piece', reader.read())
    assert.equal(Buffer.from(first.value).toString(), 'first\n')
    assert.equal(await (await request(sb, 3000, '/go')).text(), 'gone')
    const second = await within(20_000, 'the second piece', reader.read())
    assert.equal(Buffer.from(second.value).toString(), 'second\n')
    assert.equal((await reader.read()).done, true)
  })

  test('WebSocket', async () => {
    const socket = new undici.WebSocket(base(sb, 3000).replace(/^http/, 'ws') + '/ws', { headers: route(sb, 3000) })
    const next = () => new Promise((resolve, reject) => {
      socket.onmessage = (event) => resolve(event.data)
      socket.onerror = (event) => reject(event.error ?? new Error('socket failed'))
    })
    const opened = new Promise((resolve, reject) => {
      socket.onopen = resolve
      socket.onerror = (event) => reject(event.error ?? new Error('socket failed'))
    })
    await within(20_000, 'opening', opened)
    for (const text of ['hello', 'zweite Nachricht ü']) {
      const answer = next()
      socket.send(text)
      assert.equal(await within(20_000, 'the echo', answer), text)
    }
    const closed = new Promise((resolve) => { socket.onclose = resolve })
    socket.close()
    await within(20_000, 'closing', closed)
  })

  test('a closed port', async () => {
    const res = await request(sb, 3999, '/')
    assert.equal(res.status, 502)
    const body = await res.json()
    assert.equal(body.code, 502)
    assert.equal(body.port, 3999)
    assert.equal(body.sandboxId, sb.sandboxId)
  })

  test('a sandbox that ended', async (t) => {
    const other = await sandbox(t)
    await other.kill()
    const res = await request(other, 3000, '/')
    assert.equal(res.status, 502)
    assert.equal((await res.json()).code, 502)
  })
})
