-- Tell what the node does when its memory is full, and how many names have waiters.
-- KEYS fences, waits              ARGV nonce, limit, epoch
-- Counts at most ``limit`` names, and none in ``waits`` that cannot be read. ``epoch`` is compared as
-- by the grant: a node that was emptied or promoted under a process says so before anybody asks for a
-- lock. It is '' of a connection that was not admitted, under the restart guard for one: nothing is
-- compared then.
-- Returns nonce, MEMORY, [bytes that it may use (0: without a limit), policy, keys evicted, names]
-- | nonce, EMPTY
local known = ARGV[#ARGV]
local epoch, told = redis.call('HGET', KEYS[1], 'epoch'), redis.call('INFO', 'replication')
local at = string.find(told, 'second_repl_offset:', 1, true)
local id = at and string.find(told, '^%d', at + 19) and string.find(told, 'master_replid:', 1, true)
local history = id and string.match(told, '^%x+', id + 14) or ''
if known ~= '' and (not epoch or epoch .. history ~= known) then return {ARGV[1], 'EMPTY'} end
local t = redis.call('TIME')
local now = string.format('(%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
local waited = redis.pcall('ZRANGEBYSCORE', KEYS[2], now, '+inf', 'LIMIT', 0, ARGV[2])
local memory, stats = redis.call('INFO', 'memory'), redis.call('INFO', 'stats')
local function row(text, name, pattern)
  local _, last = string.find(text, '\n' .. name .. ':', 1, true)
  return last and string.match(text, pattern, last + 1)
end
return {ARGV[1], 'MEMORY', {
  tonumber(row(memory, 'maxmemory', '^%d+') or '0'),
  row(memory, 'maxmemory_policy', '^[%w-]+') or '',
  tonumber(row(stats, 'evicted_keys', '^%d+') or '0'),
  #waited}}
