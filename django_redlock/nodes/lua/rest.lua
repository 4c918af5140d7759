-- Release the names for a lock with min_hold: they stay taken until its time is over.
-- KEYS held, lock × n             ARGV nonce, rest, name × n
-- For ``rest`` milliseconds more, under a value that has no nonce (``rest::label``): it can be
-- neither extended nor released. A key that was revoked from this nonce rests as well, and no longer:
-- its holder is the one that lets go.
-- Returns nonce, RESTING, number of keys | nonce, GONE; and where a lease was revoked, from whom and
-- why
local nonce, rest, n, revoked = ARGV[1], tonumber(ARGV[2]), 0, nil
local t = redis.call('TIME')
local due = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000) + rest)
for i = 2, #KEYS do
  local value, label = redis.call('GET', KEYS[i]), nil
  if value and string.sub(value, 1, #nonce + 1) == nonce .. ':' then
    label = string.match(value, '^%x+:%d+:(.*)$') or ''
  elseif value then
    local owner, text = string.match(value, '^revoked:([0-9a-f]+):(.*)$')
    if owner and owner == string.sub(redis.sha1hex(nonce), 1, 16) then label, revoked = text, text end
  end
  if label then
    redis.call('SET', KEYS[i], 'rest::' .. label, 'PX', rest)
    redis.call('ZADD', KEYS[1], due, ARGV[i + 1])
    n = n + 1
  end
end
if n == 0 then return {nonce, 'GONE'} end
if revoked then return {nonce, 'RESTING', n, revoked} end
return {nonce, 'RESTING', n}
