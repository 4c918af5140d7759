-- Turn the names of a lease into records that its work is done.
-- KEYS held, lock × n             ARGV nonce, life, at, label, granted, name × n
-- Only keys that have this nonce, for ``life`` milliseconds. A record has no nonce: it can be neither
-- extended nor released. It is ``done::label``, or ``once::at:label`` if ``at`` is not 0: when the work
-- was done, in milliseconds. Without ``label`` it has that of the lease.
-- With ``granted`` somebody puts a record back that another node has. The key has had the nonce since
-- it was granted for so many milliseconds, and ``life`` counts from then: a message that was late must
-- not prolong a record. One whose time is over is freed.
-- A record is no held name, so that index forgets it. The index of its kind, beside it, has the last
-- 10,000 of them, and a few more until it is trimmed now and then. Its writes may fail: a record is
-- worth more.
-- Of a lease that was revoked nothing is recorded: its names are freed, for its holder lets go.
-- Returns nonce, RECORDED, number of keys | nonce, GONE; and where a lease was revoked, from whom and
-- why
local nonce, n, labels, revoked = ARGV[1], 0, {}, nil
local granted, kind = tonumber(ARGV[5]), ARGV[3] == '0' and 'done::' or 'once::' .. ARGV[3] .. ':'
local records = string.gsub(KEYS[1], 'held$', ARGV[3] == '0' and 'records' or 'once')
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
  local life = tonumber(ARGV[2])
  if granted > 0 then life = life - math.max(0, granted - redis.call('PTTL', KEYS[i])) end
  redis.call('ZREM', KEYS[1], ARGV[i + 4])
  if revoked or life < 1 then
    redis.call('DEL', KEYS[i])
  else
    redis.call('SET', KEYS[i], kind .. (ARGV[4] ~= '' and ARGV[4] or label), 'PX', life)
    redis.pcall('ZADD', records, now + life, ARGV[i + 4])
    n = n + 1
  end
end
if t[2] % 64 == 0 then
  redis.pcall('ZREMRANGEBYSCORE', records, '-inf', now)
  redis.pcall('ZREMRANGEBYRANK', records, 0, -10001)
end
if revoked then return {nonce, 'GONE', revoked} end
if n == 0 then return {nonce, 'GONE'} end
return {nonce, 'RECORDED', n}
