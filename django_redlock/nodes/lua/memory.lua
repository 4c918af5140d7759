-- Tell what the node does when its memory is full.
-- KEYS held                       ARGV nonce
-- Returns nonce, MEMORY, [bytes that it may use (0: without a limit), policy, keys evicted]
local memory, stats = redis.call('INFO', 'memory'), redis.call('INFO', 'stats')
return {ARGV[1], 'MEMORY', {
  tonumber(string.match(memory, '\nmaxmemory:(%d+)') or '0'),
  string.match(memory, '\nmaxmemory_policy:([%w-]+)') or '',
  tonumber(string.match(stats, '\nevicted_keys:(%d+)') or '0')}}
