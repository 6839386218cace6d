import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'

import { create, eventually, request, sdk, within } from './sdk.mjs'

const other = !sdk.Sandbox.prototype.runCode && 'the package has no code interpreter'

describe('code', { skip: other }, () => {
  let sb
  before(async () => { sb = await create({ timeoutMs: 300_000 }) })
  after(() => sb?.kill())

  test('health', async () => {
    const res = await request(sb, 49999, '/health')
    assert.equal(res.status, 200)
    assert.equal(await res.json(), 'OK')
  })

  test('without a token', async () => {
    const res = await request(sb, 49999, '/execute', { method: 'POST', body: '{"code":"1"}' })
    assert.equal(res.status, 401)
    const page = await request(sb, 49999, '/contexts', { headers: { Origin: 'https://example.com' } })
    assert.equal(page.status, 401)
  })

  test('state over cells', async () => {
    const first = await sb.runCode('x = 20\ndef f(): return x + 1')
    assert.equal(first.error, undefined)
    const next = await sb.runCode('x += 1; f()')
    assert.equal(next.text, '22')
    assert.equal(next.executionCount, first.executionCount + 1)
    assert.equal(next.results[0].isMainResult, true)
  })

  test('output', async () => {
    const seen = []
    const run = await sb.runCode('import sys, subprocess\nprint("zwölf 😀")\nprint("bad", file=sys.stderr)\nsubprocess.run(["echo", "child"]);', {
      onStdout: (m) => seen.push(m.line),
    })
    assert.equal(run.logs.stdout.join(''), 'zwölf 😀\nchild\n')
    assert.equal(run.logs.stderr.join(''), 'bad\n')
    assert.equal(seen.join(''), 'zwölf 😀\nchild\n')
  })

  test('an error with its traceback', async () => {
    await sb.runCode('def broken():\n    raise ValueError("inside")')
    const run = await sb.runCode('broken()')
    assert.equal(run.error.name, 'ValueError')
    assert.equal(run.error.value, 'inside')
    assert.match(run.error.traceback, /Traceback[^]*raise ValueError\("inside"\)/)
    assert.equal((await sb.runCode('1 + 1')).text, '2')
  })

  test('variables', async () => {
    const show = 'import os; os.environ.get("OWN")'
    assert.equal((await sb.runCode(show, { envs: { OWN: 'mine' } })).text, 'mine')
    assert.equal((await sb.runCode(show)).results.length, 0)
  })

  test('contexts', async () => {
    const ctx = await sb.createCodeContext({ cwd: '/usr', language: 'python' })
    assert.equal(ctx.cwd, '/usr')
    assert.equal((await sb.runCode('import os; y = 1; os.getcwd()', { context: ctx })).text, '/usr')
    assert.equal((await sb.runCode('y')).error.name, 'NameError')
    assert.ok((await sb.listCodeContexts()).some((c) => c.id === ctx.id))
    await sb.restartCodeContext(ctx)
    assert.equal((await sb.runCode('y', { context: ctx })).error.name, 'NameError')
    await sb.removeCodeContext(ctx)
    assert.ok(!(await sb.listCodeContexts()).some((c) => c.id === ctx.id))
    await assert.rejects(sb.runCode('1', { context: ctx }), (err) => err instanceof sdk.NotFoundError)
  })

  test('a timeout interrupts', async () => {
    await sb.runCode('kept = 3')
    await assert.rejects(sb.runCode('while True: pass', { timeoutMs: 500 }), (err) => err instanceof sdk.TimeoutError)
    assert.equal((await within(20_000, 'the next cell', sb.runCode('kept'))).text, '3')
  })

  test('displayed results', async () => {
    const run = await sb.runCode('class H:\n    def _repr_html_(self): return "<b>"\ndisplay(H())\n{"a": [1, 2]}')
    assert.equal(run.results.length, 2)
    assert.equal(run.results[0].html, '<b>')
    assert.equal(run.results[0].isMainResult, false)
    assert.deepEqual(run.results[1].json, { a: [1, 2] })
  })

  test('a picture of matplotlib', async (t) => {
    const found = await sb.runCode('import matplotlib.pyplot as plt')
    if (found.error?.name === 'ModuleNotFoundError') {
      if (process.env.CI) assert.fail(found.error.value)
      return t.skip('matplotlib is not installed')
    }
    assert.equal(found.error, undefined, found.error?.traceback)
    const run = await sb.runCode('plt.plot([1, 2], [3, 4]); plt.title("T"); plt.show()')
    assert.equal(run.error, undefined, run.error?.traceback)
    const png = Buffer.from(run.results[0].png, 'base64')
    assert.equal(png.subarray(0, 4).toString('latin1'), '\x89PNG')
    assert.equal(run.results[0].chart.type, 'line')
    assert.equal(run.results[0].chart.title, 'T')
  })

  test('JavaScript', async () => {
    const first = await sb.runCode('const x = 1; console.log("hi"); await Promise.resolve(x + 1)', { language: 'js' })
    assert.equal(first.error, undefined, first.error?.traceback)
    assert.equal(first.logs.stdout.join(''), 'hi\n')
    assert.equal(first.text, '2')
    assert.equal((await sb.runCode('x', { language: 'javascript' })).text, '1')
  })

  test('Bash', async () => {
    await sb.runCode('cd /usr; v=1', { language: 'bash' })
    const run = await sb.runCode('echo "$PWD $v"; exit 3', { language: 'bash' })
    assert.equal(run.logs.stdout.join(''), '/usr 1\n')
    assert.equal(run.error.name, 'ExitCode')
    assert.equal(run.error.value, '3')
  })

  test('a language that is not there', async () => {
    await assert.rejects(sb.runCode('1', { language: 'r' }), (err) => err instanceof sdk.SandboxError)
  })

  test('a client that goes away leaves the context free', async () => {
    const own = new AbortController()
    const gone = sb.runCode('import time; print("on"); time.sleep(1000)', { signal: own.signal, onStdout: () => own.abort(), timeoutMs: 2000 })
    await assert.rejects(gone)
    await eventually('free', async () => (await sb.runCode('1')).text === '1')
  })
})
