import assert from 'node:assert/strict'
import { describe, test } from 'node:test'

import { Sandbox, rejects, sandbox } from './sdk.mjs'

// Older packages do not know snapshots.
const skip = typeof Sandbox.createSnapshot !== 'function' && 'not part of the package'

describe('snapshots', { skip }, () => {
  test('create, list, start from, delete', async (t) => {
    const sb = await sandbox(t)
    await sb.files.write('file', 'one')
    const named = await sb.createSnapshot({ name: 'after one' })
    t.after(() => Sandbox.deleteSnapshot(named.snapshotId))
    await sb.files.write('file', 'two')
    const plain = await Sandbox.createSnapshot(sb.sandboxId)
    t.after(() => Sandbox.deleteSnapshot(plain.snapshotId))
    assert.deepEqual(named.names, ['after one'])
    assert.equal(await sb.isRunning(), true)

    const ids = []
    for (const pages = sb.listSnapshots({ limit: 1 }); pages.hasNext;) {
      ids.push(...(await pages.nextItems()).map((s) => s.snapshotId))
    }
    assert.deepEqual(ids, [plain.snapshotId, named.snapshotId])
    const all = await Sandbox.listSnapshots().nextItems()
    assert.ok(all.some((s) => s.snapshotId === named.snapshotId && s.names[0] === 'after one'))

    const child = await Sandbox.create(named.snapshotId, { timeoutMs: 120_000 })
    t.after(() => child.kill())
    assert.equal(await child.files.read('file'), 'one')
    await child.files.write('file', 'three')
    assert.equal(await sb.files.read('file'), 'two')

    assert.equal(await Sandbox.deleteSnapshot(named.snapshotId), true)
    assert.equal(await Sandbox.deleteSnapshot(named.snapshotId), false)
    assert.equal(await child.files.read('file'), 'three')
    await assert.rejects(Sandbox.create(named.snapshotId))
  })

  test('of a sandbox that is not there', async () => {
    await rejects(Sandbox.createSnapshot('nosuchsandbox'), 'SandboxNotFoundError')
  })
})
