import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'

import { Sandbox, eventually, rejects, sandbox, sleep } from './sdk.mjs'

describe('pause and resume', () => {
  // counter runs a command that counts, and returns how far it is.
  async function counter(sb) {
    const run = await sb.commands.run('n=0; while :; do n=$((n+1)); echo $n > count; sleep 0.02; done',
      { background: true, timeoutMs: 0 })
    run.wait().catch(() => {})
    const count = async () => (await sb.files.exists('count')) && Number(await sb.files.read('count'))
    await eventually('counting', async () => (await count()) > 2)
    return { count, pid: run.pid }
  }

  test('state is kept, connect resumes', async (t) => {
    const mark = randomUUID()
    const sb = await sandbox(t, { metadata: { mark } })
    const { count, pid } = await counter(sb)
    await sb.files.write('kept', 'as it was')
    assert.equal(await sb.pause(), true)
    assert.equal(await sb.pause(), false) // already paused
    assert.equal(await sb.isRunning(), false)
    assert.equal((await Sandbox.getInfo(sb.sandboxId)).state, 'paused')
    const listed = async (state) =>
      (await Sandbox.list({ query: { metadata: { mark }, state } }).nextItems()).map((s) => s.state)
    assert.deepEqual(await listed(['paused']), ['paused'])
    assert.deepEqual(await listed(['running']), [])
    await rejects(sb.commands.run('true'), 'SandboxNotFoundError')
    await rejects(sb.files.read('kept'), 'TimeoutError')

    const again = await Sandbox.connect(sb.sandboxId, { timeoutMs: 60_000 })
    assert.equal(again.sandboxId, sb.sandboxId)
    assert.equal(await again.isRunning(), true)
    assert.equal((await again.getInfo()).state, 'running')
    assert.equal(await again.files.read('kept'), 'as it was')
    assert.ok((await again.commands.list()).some((p) => p.pid === pid), 'the process is gone')
    const then = await count()
    await eventually('counting on', async () => (await count()) > then)
    const left = (await again.getInfo()).endAt - Date.now()
    assert.ok(left < 200_000, `lives ${left} ms`)
  })

  test('nothing runs meanwhile', async (t) => {
    const sb = await sandbox(t)
    await sb.commands.run('while :; do date +%s%N >> ticks; sleep 0.05; done',
      { background: true, timeoutMs: 0 }).then((run) => run.wait().catch(() => {}) && undefined)
    await eventually('ticking', async () => // the file is there before the first tick is
      (await sb.files.exists('ticks')) && (await sb.files.read('ticks')).split('\n').length > 2)
    await sb.pause()
    await sleep(1_500)
    await sb.connect()
    await eventually('a gap between the ticks', async () => {
      const ticks = (await sb.files.read('ticks')).trim().split('\n').map((n) => Number(BigInt(n) / 1_000_000n))
      return ticks.some((tick, i) => i > 0 && tick - ticks[i - 1] >= 1_200)
    })
  })

  test('a paused sandbox can be killed', async (t) => {
    const sb = await sandbox(t)
    await sb.pause()
    assert.equal(await sb.kill(), true)
    await rejects(Sandbox.connect(sb.sandboxId), 'NotFoundError')
  })

  test('pause instead of the end', async (t) => {
    const sb = await sandbox(t, { timeoutMs: 60_000, lifecycle: { onTimeout: 'pause' } })
    await sb.files.write('kept', 'still')
    await sb.setTimeout(1_000)
    await eventually('paused', async () => (await Sandbox.getInfo(sb.sandboxId)).state === 'paused')
    const again = await Sandbox.connect(sb.sandboxId, { timeoutMs: 60_000 })
    assert.equal(await again.files.read('kept'), 'still')
  })
})
