// What the tests share: the package under test, and how they wait and get a
// sandbox. The arguments of the process name the directory in which the package
// is installed and the package, and say how much to run: light, long or full;
// everything else the package reads itself from its own environment variables.
import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { createRequire } from 'node:module'

const [dir, name, extent = 'full'] = process.argv.slice(2)
export const require = createRequire(`${dir}/package.json`)
export const sdk = require(name)
export const { Sandbox } = sdk
const dependent = createRequire(require.resolve('e2b'))

// undici is what the package itself makes its requests with.
export const undici = dependent('undici')

// long are the options of tests that move much, longest of those that move most.
export const long = { skip: extent === 'light' && 'runs elsewhere' }
export const longest = { skip: extent !== 'full' && 'runs elsewhere' }

export const envdPort = 49983

// shared says whether one address serves all sandboxes (E2B_SANDBOX_URL), or
// each has host names of its own (E2B_DOMAIN).
export const shared = Boolean(process.env.E2B_SANDBOX_URL)

// create makes a sandbox of the template that is always there.
export const create = (opts) => Sandbox.create('base', opts)

// sandbox creates a sandbox that ends with the test t.
export async function sandbox(t, opts) {
  const sb = await create({ timeoutMs: 120_000, ...opts })
  t.after(() => sb.kill())
  return sb
}

// eventually waits until check returns something true, and returns it.
export async function eventually(what, check, limit = 20_000) {
  const end = Date.now() + limit
  for (;;) {
    const got = await check()
    if (got) return got
    if (Date.now() > end) assert.fail(`after ${limit} ms: not ${what}`)
    await sleep(25)
  }
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

// within fails when the promise takes longer than limit.
export function within(limit, what, promise) {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} took longer than ${limit} ms`)), limit)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

// rejects is assert.rejects for an error class of the package.
export const rejects = (promise, className, more) =>
  assert.rejects(promise, (err) => {
    assert.ok(sdk[className], `the package has no ${className}`)
    assert.ok(err instanceof sdk[className], `want ${className}, got ${err?.constructor?.name}: ${err?.message}`)
    more?.(err)
    return true
  })

export const sha256 = (data) => createHash('sha256').update(data).digest('hex')

// noise returns size bytes that do not compress: one random block, repeated.
export function noise(size) {
  const block = randomBytes(1 << 20)
  const out = Buffer.alloc(size)
  for (let at = 0; at < size; at += block.length) block.copy(out, at)
  return out
}

// request sends one plain request to a port of a sandbox, without anything the
// package would add. In the shared form the headers name sandbox and port.
export function request(sb, port, path, { headers = {}, ...opts } = {}) {
  return undici.fetch(base(sb, port) + path, { ...opts, headers: { ...route(sb, port), ...headers } })
}

// base is the address of a port; route the headers it needs.
export const base = (sb, port) => (shared ? process.env.E2B_SANDBOX_URL : `https://${sb.getHost(port)}`)
export const route = (sb, port) =>
  shared ? { 'E2b-Sandbox-Id': sb.sandboxId, 'E2b-Sandbox-Port': String(port) } : {}

// api sends one request to the control plane.
export function api(method, path, body, headers = {}) {
  const url = process.env.E2B_API_URL ?? `https://api.${process.env.E2B_DOMAIN}`
  return undici.fetch(url + path, {
    method,
    headers: { 'X-API-Key': process.env.E2B_API_KEY, 'Content-Type': 'application/json', ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
  })
}
