// Runs checks a few at a time and says how each went, in the words of TAP.
'use strict'

const SECONDS_MAX = 30 // one check
const AT_ONCE = 8

const wait = ms => new Promise(resolve => setTimeout(resolve, ms))

/** Polls until `condition` gives something true, which it returns; the deadline is the check's. */
async function until(condition) {
  for (;;) {
    const found = await condition()
    if (found) return found
    await wait(20)
  }
}

function limited(promise) {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done in ${SECONDS_MAX} s`)), SECONDS_MAX * 1000)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

const oneLine = error => String((error && error.message) || error).replace(/\s+/g, ' ').slice(0, 300)

/**
 * Runs `first` alone, since without it nothing else can pass, then `checks`: name -> async function.
 * Returns how many failed.
 */
async function run(first, checks) {
  let passed = 0
  let failed = 0
  const one = async (name, check) => {
    try {
      await limited(check())
      console.log(`ok ${name}`)
      passed += 1
      return true
    } catch (error) {
      console.log(`not ok ${name}: ${oneLine(error)}`)
      failed += 1
      return false
    }
  }
  const [[name, check]] = Object.entries(first)
  const waiting = Object.entries(checks)
  if (await one(name, check)) {
    const worker = async () => {
      while (waiting.length) await one(...waiting.shift())
    }
    await Promise.all(Array.from({ length: AT_ONCE }, worker))
  } else {
    for (const [skipped] of waiting) console.log(`not ok ${skipped}: ${name} failed`)
    failed += waiting.length
  }
  console.log(`${passed} passed, ${failed} failed`)
  return failed
}

module.exports = { run, until }
