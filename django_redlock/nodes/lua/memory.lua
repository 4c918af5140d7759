-- Tell what the node does when its memory is full, and how many names have waiters.
-- KEYS held, waits                ARGV nonce, limit
-- Counts at most ``limit`` names, and none in ``waits`` that cannot be read.
-- Returns nonce, MEMORY, [bytes that it may use (0: without a limit), policy, keys evicted, names]
local t = redis.call('TIME')
local now = string.format('(%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
local waited = redis.pcall('ZRANGEBYSCORE', KEYS[2], now, '+inf', 'LIMIT', 0, ARGV[2])
local memory, stats = redis.call('INFO', 'memory'), redis.call('INFO', 'stats')
return {ARGV[1], 'MEMORY', {
  tonumber(string.match(memory, '\nmaxmemory:(%d+)') or '0'),
  string.match(memory, '\nmaxmemory_policy:([%w-]+)') or '',
  tonumber(string.match(stats, '\nevicted_keys:(%d+)') or '0'),
  #waited}}
