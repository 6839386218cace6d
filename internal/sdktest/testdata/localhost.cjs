// Loaded before the package (--require): names below localhost are this
// machine, as RFC 6761 says, also where the system's resolver does not know.
const dns = require('node:dns')
const { lookup } = dns
dns.lookup = (name, options, callback) => {
  const known = typeof name === 'string' && name.endsWith('.localhost')
  return callback === undefined
    ? lookup(known ? '127.0.0.1' : name, options)
    : lookup(known ? '127.0.0.1' : name, options, callback)
}
