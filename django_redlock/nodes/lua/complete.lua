-- Turn the names of a lease into records that its work is done.
-- KEYS held, lock × n             ARGV nonce, life, name × n
-- Only keys that have this nonce, for ``life`` milliseconds. A record (``done::label``) has no nonce:
-- it can be neither extended nor released. It is no held name, so that index forgets it. The index
-- of records, beside it, has the last 10,000 of them, and a few more until it is trimmed now and then.
-- Its writes may fail: a record is worth more.
-- Of a lease that was revoked nothing is recorded: its names are freed, for its holder lets go.
-- Returns nonce, RECORDED, number of keys | nonce, GONE; and where a lease was revoked, from whom and
-- why
local nonce, life, n, labels, revoked = ARGV[1], ARGV[2], 0, {}, nil
local records = string.gsub(KEYS[1], 'held$', 'records')
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
for i = 2, #KEYS do
  local value = redis.call('GET', KEYS[i])
  if value and string.sub(value, 1, #nonce + 1) == nonce .. ':' then
    labels[i] = string.match(value, '^%x+:%d+:(.*)$') or ''
  elseif value then
    local owner, text = string.match(value, '^revoked:([0-9a-f]+):(.*)$')
    if owner and owner == string.sub(redis.sha1hex(nonce), 1, 16) then labels[i], revoked = '', text end
  end
end
for i, label in pairs(labels) do
  redis.call('ZREM', KEYS[1], ARGV[i + 1])
  if revoked then
    redis.call('DEL', KEYS[i])
  else
    redis.call('SET', KEYS[i], 'done::' .. label, 'PX', life)
    redis.pcall('ZADD', records, now + life, ARGV[i + 1])
  end
  n = n + 1
end
if t[2] % 64 == 0 then
  redis.pcall('ZREMRANGEBYSCORE', records, '-inf', now)
  redis.pcall('ZREMRANGEBYRANK', records, 0, -10001)
end
if revoked then return {nonce, 'GONE', revoked} end
if n == 0 then return {nonce, 'GONE'} end
return {nonce, 'RECORDED', n}
