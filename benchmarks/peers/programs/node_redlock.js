// node-redlock 4 and 5 with ioredis. Arguments: the folder with node_modules, the package's name
// there, the nodes' URLs. What it is told and what it answers stands in conversation.py.
"use strict";

const { createRequire } = require("node:module");
const { createInterface } = require("node:readline");

const [home, name, ...urls] = process.argv.slice(2);
const load = createRequire(`${home}/`);
const Redis = load("ioredis");
const loaded = load(name);
const Redlock = loaded.default ?? loaded; // version 4 exports the class itself

const nodes = urls.map((url) => new Redis(url));
const redlock = new Redlock(nodes, { retryCount: 0 }); // one attempt
const say = (answer) => console.log(JSON.stringify(answer));
let lock = null;

// Both versions reject where no majority agreed, and do not tell "taken" from "no answer".
async function agreed(promise) {
  try {
    return (await promise) ?? true;
  } catch (error) {
    if (["ExecutionError", "LockError"].includes(error.name)) return false;
    throw error;
  }
}

const verbs = {
  async acquire(key, ttl) {
    const had = await agreed(redlock.acquire([key], ttl));
    lock = had || lock;
    return Boolean(had);
  },
  async extend(ttl) {
    const kept = await agreed(lock.extend(ttl));
    lock = kept || lock; // version 5 makes a new object
    return Boolean(kept);
  },
  async release() {
    return Boolean(await agreed(redlock.release(lock)));
  },
  async measure(key, ttl, count) {
    const taken = [];
    for (let i = 0; i < count; i++) {
      const start = process.hrtime.bigint();
      const had = await redlock.acquire([key], ttl);
      await redlock.release(had);
      taken.push(Number(process.hrtime.bigint() - start) / 1000);
    }
    return taken;
  },
};

async function main() {
  say("ready");
  for await (const line of createInterface({ input: process.stdin })) {
    const [verb, ...words] = JSON.parse(line);
    try {
      say(await verbs[verb](...words));
    } catch (error) {
      say({ error: `${error.name}: ${error.message}` });
    }
  }
  for (const node of nodes) node.disconnect();
}

main();
