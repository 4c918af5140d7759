// node-redlock by ioredis: all nodes at once. Spoken to as programs/serve.py says.
"use strict";
const fs = require("node:fs");
const { createRequire } = require("node:module");
const path = require("node:path");
const readline = require("node:readline");

const told = JSON.parse(process.argv[2]);
const from = createRequire(path.join(told.folder, "package.json"));
const Redis = from("ioredis");
const library = from(told.package);
const Redlock = library.default || library; // 5 and 4
const versionOf = (name) => {
  const file = path.join(told.folder, "node_modules", name, "package.json");
  return JSON.parse(fs.readFileSync(file)).version;
};
const version = versionOf(told.package);

const ttl = told.ttl * 1000;
// ioredis has no timeout of its own: with one node hung, version 4 would wait for ever.
const clients = told.urls.map((url) => {
  const client = new Redis(url, { commandTimeout: told.timeout * 1000 });
  client.on("error", () => {});
  return client;
});
const locks = new Redlock(clients);
locks.on("error", () => {});
locks.on("clientError", () => {});
const several = !version.startsWith("4.");

const median = (values) => {
  if (!values.length) return null;
  const sorted = values.slice().sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};

async function block(asked) {
  const acquire = [];
  const pair = [];
  let failed = 0;
  let error = "";
  const worked = process.cpuUsage();
  const start = process.hrtime.bigint();
  const deadline = start + BigInt(Math.round(asked.seconds * 1e9));
  const task = async (name) => {
    const rounds = Math.floor(asked.pairs / asked.tasks);
    for (let round = 0; round < rounds; round++) {
      try {
        const began = process.hrtime.bigint();
        const lock = await locks.acquire(several ? [name] : name, ttl);
        const had = process.hrtime.bigint();
        await (several ? lock.release() : lock.unlock());
        const ended = process.hrtime.bigint();
        acquire.push(Number(had - began) / 1000);
        pair.push(Number(ended - began) / 1000);
      } catch (reason) {
        failed += 1;
        error = error || String(reason).slice(0, 200);
      }
      if (process.hrtime.bigint() > deadline) return;
    }
  };
  await Promise.all(Array.from({ length: asked.tasks }, (_, i) => task(`${asked.name}:${i}`)));
  const { user, system } = process.cpuUsage(worked);
  return {
    acquire: median(acquire),
    pair: median(pair),
    seconds: Number(process.hrtime.bigint() - start) / 1e9,
    processor: (user + system) / 1e6,
    pairs: pair.length,
    failed,
    error,
    samples: pair.map((each) => Math.round(each * 10) / 10),
  };
}

async function main() {
  const ready = `${version}, ioredis ${versionOf("ioredis")}`;
  console.log(JSON.stringify({ ready, styles: ["promises"] }));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await block(JSON.parse(line))));
  }
  process.exit(0);
}

main();
