import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'

import { create, eventually, rejects, within } from './sdk.mjs'

describe('pty', () => {
  let sb
  before(async () => {
    sb = await create({ timeoutMs: 300_000 })
  })
  after(() => sb?.kill())

  // open starts a terminal and collects what it shows.
  async function open(opts) {
    const seen = { text: '' }
    const decoder = new TextDecoder()
    const pty = await sb.pty.create({
      cols: 80, rows: 24, timeoutMs: 0, ...opts,
      onData: (data) => { seen.text += decoder.decode(data, { stream: true }) },
    })
    const type = (text) => sb.pty.sendInput(pty.pid, new TextEncoder().encode(text))
    return { pty, seen, type }
  }

  test('create, input, resize, exit', async () => {
    const { pty, seen, type } = await open({ cols: 91, rows: 17, envs: { OF_PTY: 'yes' }, cwd: '/tmp' })
    await type('echo "[$(stty size)]" "[$OF_PTY]" "[$TERM]" "[$PWD]"\n')
    await eventually('shown', () => seen.text.includes('[17 91] [yes] [xterm-256color] [/tmp]'))
    await sb.pty.resize(pty.pid, { cols: 133, rows: 44 })
    await type('echo "[$(stty size)]"\n')
    await eventually('resized', () => seen.text.includes('[44 133]'))
    await type('tty >/dev/null && echo "is a t"ty; echo ünï 🎉\n')
    await eventually('a terminal', () => seen.text.includes('is a tty') && seen.text.includes('\r\nünï 🎉'))
    await type('exit 5\n')
    await rejects(within(20_000, 'exit', pty.wait()), 'CommandExitError', (err) => assert.equal(err.exitCode, 5))
  })

  test('Ctrl-C', async () => {
    const { pty, seen, type } = await open()
    // It says so once it has the terminal; before that the shell takes the signal.
    await type(`sh -c 'echo beg"un"; exec sleep 300'\n`)
    await eventually('running', () => seen.text.includes('begun\r\n'))
    await type('\x03')
    await eventually('interrupted', () => seen.text.includes('^C'))
    await type('echo still "here"\n')
    await eventually('back at the prompt', () => seen.text.includes('still here'))
    await type('\x04')
    await within(20_000, 'end of input', pty.wait().catch(() => {}))
  })

  test('kill', async () => {
    const { pty } = await open()
    const end = rejects(within(20_000, 'kill', pty.wait()), 'CommandExitError', (err) => assert.equal(err.exitCode, -1))
    assert.equal(await sb.pty.kill(pty.pid), true)
    await end
    assert.equal(await sb.pty.kill(pty.pid), false)
    await rejects(sb.pty.sendInput(pty.pid, new Uint8Array([10])), 'NotFoundError')
    await rejects(sb.pty.resize(pty.pid, { cols: 1, rows: 1 }), 'NotFoundError')
  })

  test('connect', async () => {
    const { pty, type } = await open()
    await pty.disconnect()
    let text = ''
    const again = await sb.pty.connect(pty.pid, { onData: (data) => { text += Buffer.from(data).toString() } })
    await type('echo back "again"\n')
    await eventually('shown', () => text.includes('back again'))
    await again.kill()
    await within(20_000, 'kill', again.wait().catch(() => {}))
  })

  test('timeout', async () => {
    const { pty } = await open({ timeoutMs: 2_000 })
    await rejects(within(20_000, 'timeout', pty.wait()), 'TimeoutError')
  })

  test('much output', async () => {
    const { pty, seen, type } = await open()
    await type('head -c 3000000 /dev/zero | tr "\\0" z; echo; echo "e"nd\n')
    await eventually('all shown', () => seen.text.includes('end\r\n') && seen.text.split('z').length > 3_000_000)
    await pty.kill()
    await pty.wait().catch(() => {})
  })
})
