-- Grant all names to the nonce, or none.
-- KEYS fences, held, waits, lock × n
-- ARGV nonce, wish, slack, ttl, label, old, wakeup, waits, field × n, name × n, [slots,] epoch
-- ``wish`` is the caller's wall clock and ``slack`` how far it may be ahead of this node's, in
-- microseconds; ``ttl`` in milliseconds. With ``old`` and ``wakeup`` empty each key must be
-- missing. With ``old`` each must have exactly that nonce (adoption). ``wakeup`` is the nonce that
-- has woken the caller, of a lease that is over: each key must be missing, reserved or have it.
-- If refused and ``waits`` is not 0, notes for so many milliseconds that the name has a waiter.
-- ``epoch`` is what the node had when the connection was opened, with the id of its history if it had
-- been promoted: one that was emptied since, got another's data, or was promoted, has another. The
-- id is not replicated, and is new at each promotion. The node's reply is searched for texts, not for
-- patterns: a pattern is tried at each of its 500 places. The first write is one that a node which is out
-- of memory refuses, so that it refuses all. Now and then expired names are removed from the index.
-- A single free name is one SET NX. Whatever that does not grant is decided below it, as for
-- several names: whose the key is, and which error the node has.
-- A name that is a completion record (``done::label``) is refused by DONE, which tells what HELD does;
-- one that is ``once::at:label`` by ONCE, which tells ``at`` besides.
-- With ``slots`` the one name is a slot of a limited lock. A refusal then tells and notes of each of
-- them, whose names differ behind the last \31: the pttl, -2 where it is free,
-- -3 where it is reserved.
-- Returns nonce, GRANTED, g | nonce, HELD | DONE, pttl, label, owner, i | nonce, ONCE, the same, at
-- | nonce, GONE | nonce, EMPTY; with ``slots`` HELD and DONE have the list of the pttl behind i
local nonce, n, old, wakeup = ARGV[1], #KEYS - 3, ARGV[6], ARGV[7]
local counters = redis.call('HMGET', KEYS[1], 'epoch', unpack(ARGV, 9, n + 8))
local told = redis.call('INFO', 'replication')
local at = string.find(told, 'second_repl_offset:', 1, true)
local id = at and string.find(told, '^%d', at + 19) and string.find(told, 'master_replid:', 1, true)
local history = id and string.match(told, '^%x+', id + 14) or ''
if not counters[1] or counters[1] .. history ~= ARGV[#ARGV] then return {nonce, 'EMPTY'} end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local wish = tonumber(ARGV[2])
local g = math.min(wish, t[1] * 1000000 + t[2] + ARGV[3])
for i = 2, n + 1 do
  local counter = tonumber(counters[i] or 0)
  g = g and counter and math.max(g, counter + 1) -- nil: somebody wrote what is no number
end
if g then g = g == wish and ARGV[2] or string.format('%.0f', g) end
local granted = false
if g and n == 1 and old == '' and wakeup == '' then
  local set = redis.pcall('SET', KEYS[4], nonce .. ':' .. g .. ':' .. ARGV[5], 'NX', 'PX', ARGV[4])
  if set and set.ok then
    granted = type(redis.pcall('HSET', KEYS[1], ARGV[9], g)) == 'number'
    if not granted then redis.call('DEL', KEYS[4]) end
  end
end
for i = 1, granted and 0 or n do
  local value = redis.call('GET', KEYS[i + 3])
  local taken
  if old ~= '' then
    if not value then return {nonce, 'GONE'} end
    taken = string.sub(value, 1, #old + 1) ~= old .. ':'
  else
    taken = value and (wakeup == '' or
      (value ~= 'next::' and string.sub(value, 1, #wakeup + 1) ~= wakeup .. ':'))
  end
  if taken then
    if ARGV[8] ~= '0' then redis.pcall('ZADD', KEYS[3], now + ARGV[8], ARGV[8 + n + i]) end
    local owner, label = string.match(value, '^(%x+):%d+:(.*)$')
    local done = string.match(value, '^done::(.*)$')
    local at, by = string.match(value, '^once::(%d+):(.*)$')
    local revoked, text = string.match(value, '^revoked:([0-9a-f]+):(.*)$')
    if value == 'next::' then
      owner = ''
    elseif revoked and #revoked == 16 then -- else another client wrote it: no digest is told
      owner, label = revoked, text
    else
      label = label or done or by or string.match(value, '^rest::(.*)$')
      owner = string.sub(redis.sha1hex(owner or value), 1, 16)
    end
    local outcome, more = done and 'DONE' or at and 'ONCE' or 'HELD', at
    if #ARGV - 2 * #KEYS == 4 then
      local lock, name = string.match(KEYS[4], '^.*\31'), string.match(ARGV[10], '^.*\31')
      more = {}
      for j = 0, ARGV[11] - 1 do
        if ARGV[8] ~= '0' then redis.pcall('ZADD', KEYS[3], now + ARGV[8], name .. j) end
        local reserved = redis.pcall('GET', lock .. j) == 'next::'
        more[j + 1] = reserved and -3 or redis.call('PTTL', lock .. j)
      end
    end
    return {nonce, outcome, redis.call('PTTL', KEYS[i + 3]), label or '', owner, i - 1, more}
  end
end
if not g then return redis.error_reply('ERR a counter is not a number') end
for i = 1, n do
  if not granted then
    redis.call('HSET', KEYS[1], ARGV[8 + i], g)
    redis.call('SET', KEYS[i + 3], nonce .. ':' .. g .. ':' .. ARGV[5], 'PX', ARGV[4])
  end
  redis.call('ZADD', KEYS[2], now + ARGV[4], ARGV[8 + n + i])
end
if t[2] % 64 == 0 then redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now) end
return {nonce, 'GRANTED', g}
