// The suite that a published package must pass against `sandboxd serve`:
//
//	node --test-reporter ./reporter.mjs suite.mjs DIRECTORY PACKAGE [light|long|full]
import './suite/lifecycle.mjs'
import './suite/commands.mjs'
import './suite/files.mjs'
import './suite/pty.mjs'
import './suite/ports.mjs'
import './suite/pause.mjs'
import './suite/snapshots.mjs'
import './suite/secured.mjs'
import './suite/code.mjs'
