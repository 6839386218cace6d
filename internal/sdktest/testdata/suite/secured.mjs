import { File } from 'node:buffer'
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'

import { Sandbox, create, envdPort, eventually, rejects, request, sandbox, undici } from './sdk.mjs'

describe('signed addresses', () => {
  let sb
  before(async () => {
    sb = await create({ timeoutMs: 300_000 })
  })
  after(() => sb?.kill())

  const get = (url) => undici.fetch(url)
  function post(url, data, name = 'file') {
    const form = new undici.FormData()
    form.append('file', new File([data], name))
    return undici.fetch(url, { method: 'POST', body: form })
  }

  test('download', async () => {
    await sb.files.write('signed é & 100%.txt', 'content')
    const res = await get(await sb.downloadUrl('signed é & 100%.txt'))
    assert.equal(res.status, 200)
    assert.equal(await res.text(), 'content')
    const limited = await get(await sb.downloadUrl('signed é & 100%.txt', { useSignatureExpiration: 60, user: 'user' }))
    assert.equal(await limited.text(), 'content')
  })

  test('upload', async () => {
    const res = await post(await sb.uploadUrl('uploaded.txt'), 'by address')
    assert.equal(res.status, 200, await res.clone().text())
    assert.equal(await sb.files.read('uploaded.txt'), 'by address')
    const limited = await post(await sb.uploadUrl('limited.txt', { useSignatureExpiration: 60 }), 'x')
    assert.equal(limited.status, 200)
    const named = await post(await sb.uploadUrl(), 'y', 'named.txt')
    assert.equal(named.status, 200)
    assert.equal(await sb.files.read('named.txt'), 'y')
  })

  test('each opens its own sandbox', async (t) => {
    const other = await sandbox(t)
    await other.files.write('whose', 'the other')
    await sb.files.write('whose', 'mine')
    assert.equal(await (await get(await other.downloadUrl('whose'))).text(), 'the other')
    assert.equal(await (await get(await sb.downloadUrl('whose'))).text(), 'mine')
    const url = await other.downloadUrl('whose')
    await other.kill()
    assert.ok([401, 502].includes((await get(url)).status))
  })

  test('the end of a signature', async () => {
    await sb.files.write('soon', 'x')
    const url = await sb.downloadUrl('soon', { useSignatureExpiration: 1 })
    const res = await eventually('expired', async () => {
      const got = await get(url)
      return got.status !== 200 && got
    })
    assert.equal(res.status, 401)
    assert.equal((await res.json()).code, 401)
  })

  test('nothing else is opened', async () => {
    await sb.files.write('one', 'x')
    await sb.files.write('two', 'x')
    const url = new URL(await sb.downloadUrl('one', { useSignatureExpiration: 60, user: 'user' }))
    const changed = (key, value) => {
      const other = new URL(url)
      if (value === undefined) other.searchParams.delete(key)
      else other.searchParams.set(key, value)
      return other
    }
    assert.equal((await get(url)).status, 200)
    for (const other of [
      changed('path', 'two'), changed('path', '/home/user/one'), changed('username', 'root'), changed('username'),
      changed('signature', 'v1_AAAA'), changed('signature', ''), changed('signature'),
      changed('signature_expiration', '99999999999'), changed('signature_expiration'),
    ]) {
      const status = (await get(other)).status
      assert.ok([400, 401].includes(status), `${other.search}: ${status}`)
    }
    assert.equal((await post(url, 'x')).status, 401) // a signature for reading does not write
  })
})

describe('a secured sandbox', () => {
  test('refuses another token', async (t) => {
    const sb = await sandbox(t)
    const other = await sandbox(t)
    const { envdVersion } = await sb.getInfo()
    for (const envdAccessToken of ['wrong', other.envdAccessToken, undefined]) {
      const stranger = new Sandbox({
        sandboxId: sb.sandboxId, sandboxDomain: sb.sandboxDomain, envdVersion, envdAccessToken,
      })
      await rejects(stranger.commands.run('true'), 'AuthenticationError')
      await rejects(stranger.files.read('x'), 'AuthenticationError')
      await rejects(stranger.files.write('x', 'y'), 'AuthenticationError')
      await rejects(stranger.files.list('/'), 'AuthenticationError')
      await rejects(stranger.commands.list(), 'AuthenticationError')
    }
    assert.equal(await sb.files.exists('x'), false)
  })

  test('hides what only its host may call', async (t) => {
    const sb = await sandbox(t)
    const token = { 'X-Access-Token': sb.envdAccessToken }
    for (const path of ['/init', '/freeze', '/unfreeze', '/upgrade', '//init', '/./init', '/x/../init', '/INIT']) {
      const res = await request(sb, envdPort, path, { method: 'POST', headers: token, body: '{}' })
      assert.equal(res.status, 404, path)
    }
    const envs = await request(sb, envdPort, '/envs', { headers: token })
    assert.equal(envs.status, 200)
    assert.equal((await request(sb, envdPort, '/envs')).status, 401)
    assert.equal((await request(sb, envdPort, '/metrics')).status, 401)
    const metrics = await request(sb, envdPort, '/metrics', { headers: token })
    assert.equal(metrics.status, 200)
    assert.ok((await metrics.json()).mem_total > 0)
    assert.equal((await request(sb, envdPort, '/health')).status, 204)
  })
})
