-- Put a lease back on a node where its names are free: the second request of a renewal.
-- KEYS fences, held, lock × n     ARGV nonce, fence, ttl, label, field × n, name × n, epoch
-- Each key must be missing or have this nonce, else nothing is written: also a name that is reserved,
-- rests or is done is not free. ``epoch`` is compared as by the grant: a node that was emptied or
-- promoted since the connection was opened must wait for its guard first.
-- The value has the fence as its grant number, and each counter is raised to the fence, so that the
-- next holder's token is above it also where the node has lost its counters. No token is
-- acknowledged by that. Never shortens; the index is written last, and that write may fail.
-- Returns nonce, HEALED, number of keys | nonce, GONE | nonce, EMPTY
local nonce, fence, ttl, n = ARGV[1], ARGV[2], tonumber(ARGV[3]), #KEYS - 2
local epoch, told = redis.call('HGET', KEYS[1], 'epoch'), redis.call('INFO', 'replication')
local at = string.find(told, 'second_repl_offset:', 1, true)
local id = at and string.find(told, '^%d', at + 19) and string.find(told, 'master_replid:', 1, true)
local history = id and string.match(told, '^%x+', id + 14) or ''
if not epoch or epoch .. history ~= ARGV[#ARGV] then return {nonce, 'EMPTY'} end
local mine, values = nonce .. ':', {}
for i = 1, n do
  values[i] = redis.call('GET', KEYS[2 + i])
  if values[i] and string.sub(values[i], 1, #mine) ~= mine then return {nonce, 'GONE'} end
end
for i = 1, n do
  local counter = tonumber(redis.call('HGET', KEYS[1], ARGV[4 + i]) or '0')
  if not counter then return redis.error_reply('ERR a counter is not a number') end
  if counter < tonumber(fence) then redis.call('HSET', KEYS[1], ARGV[4 + i], fence) end
end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
for i = 1, n do
  local key = KEYS[2 + i]
  local left = redis.call('PTTL', key)
  if not values[i] then
    redis.call('SET', key, mine .. fence .. ':' .. ARGV[4], 'PX', ttl)
  elseif left >= 0 and left < ttl then
    redis.call('PEXPIRE', key, ttl)
  end
  if not values[i] or (left >= 0 and left < ttl) then
    redis.pcall('ZADD', KEYS[2], now + ttl, ARGV[4 + n + i])
  end
end
return {nonce, 'HEALED', n}
