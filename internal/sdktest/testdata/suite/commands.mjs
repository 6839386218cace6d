import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'

import { create, eventually, long, rejects, sandbox, within } from './sdk.mjs'

describe('commands', () => {
  let sb
  before(async () => {
    sb = await create({ timeoutMs: 300_000, envs: { OF_SANDBOX: 'box', BOTH: 'box' } })
  })
  after(() => sb?.kill())

  test('foreground', async () => {
    const got = await sb.commands.run('echo out; echo err >&2')
    assert.equal(got.exitCode, 0)
    assert.equal(got.stdout, 'out\n')
    assert.equal(got.stderr, 'err\n')
    assert.equal(got.error, undefined)
  })

  test('without output', async () => {
    const got = await sb.commands.run('true')
    assert.deepEqual([got.exitCode, got.stdout, got.stderr], [0, '', ''])
  })

  test('exit codes', async () => {
    for (const code of [1, 3, 42, 255]) {
      await rejects(sb.commands.run(`echo o; echo e >&2; exit ${code}`), 'CommandExitError', (err) => {
        assert.equal(err.exitCode, code)
        assert.equal(err.stdout, 'o\n')
        assert.equal(err.stderr, 'e\n')
        assert.equal(err.error, `exit status ${code}`)
      })
    }
    await rejects(sb.commands.run('no-such-program-here'), 'CommandExitError', (err) => {
      assert.equal(err.exitCode, 127)
      assert.match(err.stderr, /no-such-program-here/)
    })
  })

  test('death by a signal', async () => {
    for (const [signal, text] of [['KILL', 'signal: killed'], ['TERM', 'signal: terminated']]) {
      await rejects(sb.commands.run(`kill -${signal} $$`), 'CommandExitError', (err) => {
        assert.equal(err.exitCode, -1)
        assert.equal(err.error, text)
      })
    }
  })

  test('background, wait, kill', async () => {
    const run = await sb.commands.run('echo begun; sleep 300', { background: true })
    assert.ok(run.pid > 0)
    await eventually('begun', () => run.stdout === 'begun\n')
    assert.equal(run.exitCode, undefined)
    const end = rejects(run.wait(), 'CommandExitError', (err) => {
      assert.equal(err.exitCode, -1)
      assert.equal(err.error, 'signal: killed')
      assert.equal(err.stdout, 'begun\n')
    })
    assert.equal(await run.kill(), true)
    await end
    assert.equal(await sb.commands.kill(run.pid), false)
    assert.equal(await sb.commands.kill(4_000_000), false)
  })

  test('list shows what runs', async () => {
    const run = await sb.commands.run('sleep 300', { background: true, cwd: '/tmp', envs: { A: 'b' } })
    const found = (await sb.commands.list()).find((p) => p.pid === run.pid)
    assert.ok(found, 'not in the list')
    assert.equal(found.cmd, '/bin/bash')
    assert.deepEqual(found.args, ['-l', '-c', 'sleep 300'])
    assert.equal(found.cwd, '/tmp')
    assert.deepEqual(found.envs, { A: 'b' })
    await run.kill()
    await run.wait().catch(() => {})
    assert.equal((await sb.commands.list()).find((p) => p.pid === run.pid), undefined)
  })

  test('connect to what runs', async () => {
    const run = await sb.commands.run('read line; echo "got $line"; exit 4', { background: true, stdin: true })
    await run.disconnect()
    let heard = ''
    const again = await sb.commands.connect(run.pid, { onStdout: (data) => { heard += data } })
    assert.equal(again.pid, run.pid)
    await sb.commands.sendStdin(run.pid, 'this\n')
    await rejects(again.wait(), 'CommandExitError', (err) => {
      assert.equal(err.exitCode, 4)
      assert.equal(err.stdout, 'got this\n')
    })
    assert.equal(heard, 'got this\n')
    await rejects(sb.commands.connect(4_000_000), 'NotFoundError')
  })

  test('disconnect leaves it running', async () => {
    const run = await sb.commands.run('read x; echo "$x" > left', { background: true, stdin: true })
    await run.disconnect()
    await sb.commands.sendStdin(run.pid, 'alive\n')
    await eventually('written', async () =>
      (await sb.files.exists('left')) && (await sb.files.read('left')) === 'alive\n')
  })

  test('stdin and its end', async () => {
    const run = await sb.commands.run('cat', { background: true, stdin: true })
    await sb.commands.sendStdin(run.pid, 'one\n')
    await eventually('echoed', () => run.stdout === 'one\n')
    await run.sendStdin(Buffer.from('two ünïcode\n'))
    await run.closeStdin()
    const got = await within(20_000, 'cat', run.wait())
    assert.equal(got.stdout, 'one\ntwo ünïcode\n')
    await rejects(sb.commands.sendStdin(run.pid, 'late'), 'NotFoundError')
  })

  test('much input', long, async () => {
    const run = await sb.commands.run('wc -c', { background: true, stdin: true })
    const piece = 'x'.repeat(1 << 20)
    for (let i = 0; i < 8; i++) await run.sendStdin(piece)
    await run.closeStdin()
    assert.equal((await run.wait()).stdout.trim(), String(8 << 20))
  })

  test('no stdin unless asked for', async () => {
    const got = await within(20_000, 'cat', sb.commands.run('cat; echo end'))
    assert.equal(got.stdout, 'end\n')
  })

  test('timeout', async () => {
    const start = Date.now()
    await rejects(sb.commands.run('sleep 300', { timeoutMs: 500 }), 'TimeoutError')
    assert.ok(Date.now() - start < 20_000)
    await eventually('ended', async () =>
      !(await sb.commands.list()).some((p) => p.args.includes('sleep 300')))
  })

  test('no timeout', async () => {
    assert.equal((await sb.commands.run('sleep 0.2; echo done', { timeoutMs: 0 })).stdout, 'done\n')
  })

  test('envs of the sandbox and of the call', async () => {
    const line = 'echo "$OF_SANDBOX,$BOTH,$OF_CALL"'
    assert.equal((await sb.commands.run(line)).stdout, 'box,box,\n')
    const envs = { BOTH: 'call', OF_CALL: `it's "quoted" $HOME ü\n2` }
    assert.equal((await sb.commands.run(line, { envs })).stdout, `box,call,${envs.OF_CALL}\n`)
    assert.equal((await sb.commands.run(line)).stdout, 'box,box,\n')
    assert.equal((await sb.commands.run('echo $E2B_SANDBOX')).stdout, 'true\n')
    assert.equal((await sb.commands.run('echo $E2B_SANDBOX_ID')).stdout, `${sb.sandboxId}\n`)
  })

  test('cwd', async () => {
    assert.equal((await sb.commands.run('pwd')).stdout, '/home/user\n')
    assert.equal((await sb.commands.run('pwd', { cwd: '/tmp' })).stdout, '/tmp\n')
    await sb.files.makeDir('sub dir')
    assert.equal((await sb.commands.run('pwd', { cwd: 'sub dir' })).stdout, '/home/user/sub dir\n')
    assert.equal((await sb.commands.run('pwd', { cwd: '~/sub dir' })).stdout, '/home/user/sub dir\n')
    await rejects(sb.commands.run('pwd', { cwd: '/no/such/place' }), 'InvalidArgumentError')
  })

  test('user', async () => {
    const who = 'echo "$(id -un) $HOME"'
    assert.equal((await sb.commands.run(who)).stdout, 'user /home/user\n')
    assert.equal((await sb.commands.run(who, { user: 'user' })).stdout, 'user /home/user\n')
    await rejects(sb.commands.run(who, { user: 'no-such-user' }), 'AuthenticationError')
    if (process.getuid() === 0) { // else the sandbox has one identity
      assert.equal((await sb.commands.run(who, { user: 'root' })).stdout, 'root /root\n')
    }
  })

  test('unicode', async () => {
    const text = 'naïve 日本語 🎉 \u0000'.slice(0, -1)
    assert.equal((await sb.commands.run(`printf '%s' '${text}'`)).stdout, text)
    // One character in two pieces.
    const cut = await sb.commands.run(`printf '\\xf0\\x9f'; sleep 0.2; printf '\\x8e\\x89'`)
    assert.equal(cut.stdout, '🎉')
  })

  test('output that is not UTF-8', async () => {
    const got = await sb.commands.run(`printf 'a\\xff\\xfeb\\x00c'; printf '\\xc3' >&2`)
    assert.equal(got.stdout, 'a\ufffd\ufffdb\u0000c')
    assert.equal(got.stderr, '\ufffd')
  })

  test('50 MB of output', long, async () => {
    let heard = 0
    const got = await sb.commands.run('head -c 52428800 /dev/zero | tr "\\0" x; echo end >&2', {
      onStdout: (data) => { heard += data.length },
      timeoutMs: 100_000,
    })
    assert.equal(got.stdout.length, 52_428_800)
    assert.ok(/^x+$/.test(got.stdout.slice(0, 4096)) && got.stdout.endsWith('x'))
    assert.equal(heard, 52_428_800)
    assert.equal(got.stderr, 'end\n')
  })

  test('callbacks come while it runs', async () => {
    // The command goes on only after its first output was heard.
    await sb.files.remove('heard')
    let wrote
    const got = await within(30_000, 'the command', sb.commands.run(
      'echo first; until [ -e heard ]; do sleep 0.02; done; echo second >&2',
      {
        onStdout: (data) => { if (data === 'first\n') wrote = sb.files.write('heard', '') },
        onStderr: (data) => assert.equal(data, 'second\n'),
      }))
    await wrote
    assert.equal(got.stdout, 'first\n')
    assert.equal(got.stderr, 'second\n')
  })

  test('many at once', async () => {
    const got = await Promise.all(Array.from({ length: 20 }, (_, i) => sb.commands.run(`echo ${i}`)))
    assert.deepEqual(got.map((r) => r.stdout.trim()), Array.from({ length: 20 }, (_, i) => String(i)))
  })

  test('a daemon does not hold its command', async () => {
    const got = await within(20_000, 'the command', sb.commands.run('sleep 300 >/dev/null 2>&1 </dev/null & echo $!'))
    assert.ok(Number(got.stdout) > 0)
    await sb.commands.run(`kill -9 ${got.stdout.trim()}`)
  })

  test('a large command line', async () => {
    const text = 'y'.repeat(100_000)
    assert.equal((await sb.commands.run(`printf %s ${text}`)).stdout, text)
  })

  test('sandboxes do not see each other', async (t) => {
    const other = await sandbox(t)
    await sb.files.write('/tmp/mine', 'secret')
    assert.equal(await other.files.exists('/tmp/mine'), false)
    await rejects(other.commands.run('cat /tmp/mine'), 'CommandExitError')
    await rejects(other.commands.run(`ls /proc/*/environ | xargs cat | grep -c ${sb.sandboxId}`), 'CommandExitError')
  })
})
