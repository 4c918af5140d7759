-- Release the names for a lock with min_hold: they stay taken until its time is over.
-- KEYS held, lock × n             ARGV nonce, rest, name × n
-- For ``rest`` milliseconds more, under a value that has no nonce (``rest::label``): it can be
-- neither extended nor released.
-- Returns nonce, RESTING, number of keys | nonce, GONE
local nonce, rest, n = ARGV[1], tonumber(ARGV[2]), 0
local t = redis.call('TIME')
local due = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000) + rest)
for i = 2, #KEYS do
  local value = redis.call('GET', KEYS[i])
  if value and string.sub(value, 1, #nonce + 1) == nonce .. ':' then
    local label = string.match(value, '^%x+:%d+:(.*)$') or ''
    redis.call('SET', KEYS[i], 'rest::' .. label, 'PX', rest)
    redis.call('ZADD', KEYS[1], due, ARGV[i + 1])
    n = n + 1
  end
end
if n == 0 then return {nonce, 'GONE'} end
return {nonce, 'RESTING', n}
