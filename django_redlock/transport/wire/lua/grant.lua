-- KEYS fences, held, waits, lock × n
-- ARGV nonce, wish, slack, ttl, label, old, word, waits, field × n, name × n, epoch
-- Takes all names or none. ``wish`` is the caller's wall clock and ``slack`` how far it may be
-- ahead of this node's, in microseconds; ``ttl`` in milliseconds. With ``old`` and ``word`` empty
-- each key must be missing. With ``old`` each must carry exactly that nonce (adoption). With
-- ``word``, the nonce of a tenancy that is over, each must be missing, reserved or carry that.
-- If refused and ``waits`` is not 0, notes for so many milliseconds that somebody waits.
-- ``epoch`` is what the node had when the connection was opened: one that was emptied since, or
-- got another's data, has none or another. The first write is one that a node which is out of
-- memory refuses, so that it refuses all. Now and then the index is rid of what has expired.
-- Returns nonce, GRANTED, g | nonce, HELD, pttl, label, owner, i | nonce, GONE | nonce, EMPTY
local nonce, n, old, word = ARGV[1], #KEYS - 3, ARGV[6], ARGV[7]
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[#ARGV] then return {nonce, 'EMPTY'} end
for i = 1, n do
  local value = redis.call('GET', KEYS[i + 3])
  local taken
  if old ~= '' then
    if not value then return {nonce, 'GONE'} end
    taken = string.sub(value, 1, #old + 1) ~= old .. ':'
  else
    taken = value and (word == '' or
      (value ~= 'next::' and string.sub(value, 1, #word + 1) ~= word .. ':'))
  end
  if taken then
    if ARGV[8] ~= '0' then
      local t = redis.call('TIME')
      local due = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[8])
      redis.pcall('ZADD', KEYS[3], due, ARGV[8 + n + i])
    end
    local owner, label = string.match(value, '^(%x+):%d+:(.*)$')
    if value == 'next::' then
      owner = ''
    else
      label = label or string.match(value, '^rest::(.*)$')
      owner = string.sub(redis.sha1hex(owner or value), 1, 16)
    end
    return {nonce, 'HELD', redis.call('PTTL', KEYS[i + 3]), label or '', owner, i - 1}
  end
end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local g = math.min(tonumber(ARGV[2]), now + tonumber(ARGV[3]))
for i = 9, n + 8 do
  g = math.max(g, (tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0')) + 1)
end
g = string.format('%.0f', g)
local due = string.format('%.0f', math.floor(now / 1000) + ARGV[4])
for i = 1, n do
  redis.call('HSET', KEYS[1], ARGV[8 + i], g)
  redis.call('SET', KEYS[i + 3], nonce .. ':' .. g .. ':' .. ARGV[5], 'PX', ARGV[4])
  redis.call('ZADD', KEYS[2], due, ARGV[8 + n + i])
end
if t[2] % 64 == 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', math.floor(now / 1000)))
end
return {nonce, 'GRANTED', g}
