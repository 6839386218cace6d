// Reports each test as a line of JSON; the Go side makes a subtest of it.
import { inspect } from 'node:util'

export default async function* report(events) {
  const path = []
  for await (const { type, data } of events) {
    switch (type) {
      case 'test:start':
        path[data.nesting] = data.name
        path.length = data.nesting + 1
        yield line('start', path)
        break
      case 'test:pass':
      case 'test:fail': {
        path.length = data.nesting + 1
        path[data.nesting] = data.name
        const skipped = data.skip === undefined ? undefined : String(data.skip)
        yield line(type.slice(5), path, {
          group: data.details.type === 'suite', skip: skipped, ms: Math.round(data.details.duration_ms),
          error: data.details.error && inspect(data.details.error.cause ?? data.details.error, { depth: 4, maxStringLength: 2000 }),
        })
        break
      }
      case 'test:diagnostic':
      case 'test:stdout':
      case 'test:stderr':
        if (data.nesting !== 0 || type !== 'test:diagnostic') yield line('log', path, { message: data.message })
    }
  }
}

const line = (event, path, more) => `${JSON.stringify({ event, path: [...path], ...more })}\n`
