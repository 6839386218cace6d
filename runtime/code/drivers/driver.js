// Runs cells of JavaScript, and of TypeScript where node can take the types out,
// for the code interpreter. The protocol is the one that driver.py describes.
'use strict'
const fs = require('node:fs')
const net = require('node:net')
const repl = require('node:repl')
const util = require('node:util')
const { Writable, PassThrough } = require('node:stream')
const { Console } = require('node:console')

const [, , language = 'javascript'] = process.argv
const requests = 3
const events = 4
const outputs = [1, 2]

let cell = null // id of the cell that runs

function write(fd, data) {
  let left = Buffer.from(data)
  while (left.length) {
    try {
      left = left.subarray(fs.writeSync(fd, left))
    } catch (err) {
      if (err.code !== 'EAGAIN') throw err
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1)
    }
  }
}

const send = (event, fields) => write(events, JSON.stringify({ event, ...fields }) + '\n')

// sink is a stream that has written when it says so.
const sink = (fd) => new Writable({
  decodeStrings: false,
  write(chunk, _, done) {
    try {
      write(fd, chunk)
      done()
    } catch (err) {
      done(err)
    }
  },
})

const out = sink(outputs[0])
const err = sink(outputs[1])
for (const [name, stream] of [['stdout', out], ['stderr', err]]) {
  Object.defineProperty(process, name, { configurable: true, enumerable: true, get: () => stream })
}
const output = new Console(out, err)

const shell = repl.start({
  prompt: '', input: new PassThrough(), output: sink(outputs[1]), terminal: false, useGlobal: false, breakEvalOnSigint: true,
})
const context = shell.context
context.console = output
context.display = display

// interrupt ends a cell that waits. While one computes, node watches for SIGINT
// itself, and any listener would be in the way of that.
const interrupt = () => { if (cell !== null) shell.emit('SIGINT') }
process.on('SIGINT', interrupt)

// display shows values in the results of the cell.
function display(...values) {
  for (const value of values) result(value, false)
}

const shown = Symbol.for('Jupyter.display')

function result(value, main) {
  let data = {}
  try {
    const own = value?.[shown]
    if (typeof own === 'function') data = { ...own.call(value) }
  } catch {
    data = {} // it can still be printed
  }
  for (const [mime, v] of Object.entries(data)) {
    if (util.types.isUint8Array(v)) data[mime] = Buffer.from(v).toString('base64')
  }
  try {
    data['text/plain'] ??= util.inspect(value, { maxArrayLength: null, maxStringLength: null })
  } catch (e) {
    data['text/plain'] = `<inspect failed: ${e?.name}>`
  }
  if (Object.keys(data).length === 1 && plain(value)) {
    try {
      data['application/json'] = JSON.parse(JSON.stringify(value))
    } catch { /* it has cycles, or numbers that JSON lacks */ }
  }
  send('result', { id: cell, main, data })
}

// plain reports whether a value is an array or an object without a class.
function plain(value) {
  if (value === null || typeof value !== 'object' || util.types.isProxy(value)) return false
  if (Array.isArray(value)) return true
  const proto = Object.getPrototypeOf(value)
  return proto === null || Object.getPrototypeOf(proto) === null
}

// Declarations at the top level become "var", so that they are there in later
// cells and can be made again.
function redeclare(code) {
  const edits = [] // [start, end, text]
  let depth = 0
  let start = true // of a statement
  let operand = true // a slash begins a regular expression
  let pending = null // depth of a class whose body is to end
  const templates = []
  for (let i = 0; i < code.length;) {
    const c = code[i]
    const rest = code.slice(i, i + 2)
    if (/\s/.test(c)) {
      if (c === '\n' && depth === 0) start = true
      i++
      continue
    }
    if (rest === '//' || (rest === '#!' && i === 0)) {
      i = end(code, '\n', i)
      continue
    }
    if (rest === '/*') {
      i = end(code, '*/', i + 2) + 2
      continue
    }
    if (c === '"' || c === "'") {
      for (i++; i < code.length && code[i] !== c; i++) if (code[i] === '\\') i++
      i++
      operand = start = false
      continue
    }
    if (c === '`' || (c === '}' && templates.at(-1) === depth)) {
      if (c === '}') templates.pop()
      for (i++; i < code.length && code[i] !== '`'; i++) {
        if (code[i] === '\\') i++
        else if (code[i] === '$' && code[i + 1] === '{') {
          templates.push(depth)
          i++
          break
        }
      }
      i++
      operand = templates.at(-1) === depth
      start = false
      continue
    }
    if (c === '/' && operand) {
      let set = false
      for (i++; i < code.length && code[i] !== '\n' && (set || code[i] !== '/'); i++) {
        if (code[i] === '\\') i++
        else if (code[i] === '[') set = true
        else if (code[i] === ']') set = false
      }
      i++
      operand = start = false
      continue
    }
    const word = /^[\p{ID_Start}$_][\p{ID_Continue}$\u200c\u200d]*/u.exec(code.slice(i, i + 256))
    if (word) {
      const w = word[0]
      if (depth === 0 && start && code[i - 1] !== '.') {
        const next = code.slice(i + w.length)
        if (w === 'const' || (w === 'let' && /^\s*[\p{ID_Start}$_[{]/u.test(next))) edits.push([i, i + w.length, 'var'])
        const name = w === 'class' && /^\s+([\p{ID_Start}$_][\p{ID_Continue}$]*)/u.exec(next)
        if (name && name[1] !== 'extends') {
          edits.push([i, i, `var ${name[1]} = `])
          pending = 0
        }
      }
      i += w.length
      operand = /^(return|typeof|case|in|of|delete|void|throw|new|else|do|await|yield|instanceof)$/.test(w)
      start = false
      continue
    }
    if ('([{'.includes(c)) depth++
    if (')]}'.includes(c)) depth--
    if (c === '}' && depth === 0 && pending !== null) {
      edits.push([i + 1, i + 1, ';'])
      pending = null
    }
    start = c === ';' || (c === '}' && depth === 0)
    operand = !/[)\]}\d.]/.test(c) || (c === '}' && depth === 0)
    i++
  }
  for (const [from, to, text] of edits.reverse()) code = code.slice(0, from) + text + code.slice(to)
  return code
}

function end(code, mark, from) {
  const at = code.indexOf(mark, from)
  return at < 0 ? code.length : at
}

let waiting = null // takes what the cell throws

// stripped is code without its types; what stays is where it was.
function stripped(code, name) {
  try {
    return require('node:module').stripTypeScriptTypes(code)
  } catch (e) {
    if (e.stack?.startsWith(':')) e.stack = name + e.stack // it begins with where, of no file
    throw e
  }
}

function evaluate(code, name) {
  if (language === 'typescript') code = stripped(code, name)
  return new Promise((resolve, reject) => {
    code = redeclare(code) + '\n'
    waiting = reject
    process.removeListener('SIGINT', interrupt)
    shell.eval(code, context, name, (e, value) => (e ? reject(e) : resolve(value)))
    process.on('SIGINT', interrupt)
  })
}

// caught gets what the cell throws, by way of the shell, and what a timer throws:
// that ends the cell that runs, too.
function caught(e) {
  if (waiting) return waiting(e)
  output.error('Uncaught', e)
}
if (shell._domain) { // of node before 26
  shell._domain.removeAllListeners('error')
  shell._domain.on('error', caught)
}
process.removeAllListeners('uncaughtException')
process.on('uncaughtException', caught)

function fail(e) {
  if (e?.constructor?.name === 'Recoverable' && e.err) e = e.err // the code ends too early
  const broken = e?.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED'
  const error = util.types.isNativeError(e) || e instanceof Error || (e && typeof e === 'object' && 'stack' in e)
  const name = broken ? 'KeyboardInterrupt' : error ? String(e.name ?? 'Error') : 'Error'
  const value = broken ? 'the cell was interrupted' : error ? String(e.message) : util.inspect(e)
  let lines = error && !broken ? String(e.stack ?? `${name}: ${value}`).split('\n') : [`${name}: ${value}`]
  const own = lines.findIndex((l) => /^\s+at /.test(l) && (l.includes(__filename) || /node:(vm|repl|internal|domain|events)/.test(l)))
  if (own > 0) lines = lines.slice(0, own)
  send('error', { id: cell, name, value, traceback: lines })
}

let count = 0

async function run(req) {
  cell = req.id
  send('count', { id: cell, n: ++count })
  const before = {}
  for (const [key, value] of Object.entries(req.env ?? {})) {
    before[key] = process.env[key]
    process.env[key] = value
  }
  try {
    const value = await evaluate(req.code, `<cell ${count}>`)
    if (value !== undefined && !/;\s*$/.test(req.code)) result(value, true)
  } catch (e) {
    fail(e)
  }
  for (const [key, value] of Object.entries(before)) {
    if (value === undefined) delete process.env[key]
    else process.env[key] = value
  }
  for (const fd of outputs) write(fd, req.marker ?? '')
  send('end', { id: cell })
  cell = waiting = null
}

const needs = 'typescript needs node 22.13 or newer'
if (language === 'typescript' && !require('node:module').stripTypeScriptTypes) {
  send('refused', { value: `${needs}; found ${process.version}` })
  process.exit(1)
}
process.on('warning', () => {})
process.on('unhandledRejection', (e) => output.error('Unhandled rejection:', e))
send('ready', { pid: process.pid, version: process.version, language })

// One at a time; the rest of a chunk waits.
let queue = Promise.resolve()
let partial = []
// Not a stream of fs: a thread would wait in read(2), and hold up the exit.
const input = new net.Socket({ fd: requests, readable: true, writable: false })
input.on('data', (chunk) => {
  for (;;) {
    const at = chunk.indexOf(10)
    if (at < 0) break
    const line = Buffer.concat([...partial, chunk.subarray(0, at)]).toString()
    partial = []
    chunk = chunk.subarray(at + 1)
    queue = queue.then(() => {
      const req = JSON.parse(line)
      if (req.op === 'run') return run(req)
      if (req.op === 'ping') return send('end', { id: req.id })
      process.exit(0)
    })
  }
  if (chunk.length) partial.push(chunk)
})
input.on('end', () => queue.then(() => process.exit(0)))
