-- Take a lock away from its holder: no renewal, heal, hand-over or release keeps it any longer.
-- KEYS held, waits, lock, queue    ARGV nonce, owner, why, now, least, name
-- ``owner`` is the digest of the holder that was seen, as ``survey`` gives it: never the next one's.
-- The key keeps its expiry, or lasts for ``least`` milliseconds if that is longer: the name is free
-- no earlier than the last deadline in which the holder can believe. Its value becomes
-- ``revoked:owner:label, why``: without a nonce, and not free.
-- With ``now`` "1" the key is deleted instead, also one that rests or is another client's, and the
-- first waiter is woken: the old holder may believe in its lease until its deadline.
-- Returns nonce, REVOKED, pttl | nonce, GONE
local value = redis.call('GET', KEYS[3])
if not value then return {ARGV[1], 'GONE'} end
local nonce, label = string.match(value, '^(%x+):%d+:(.*)$')
local over = string.match(value, '^revoked:([0-9a-f]+):')
if over and #over ~= 16 then over = nil end
if (over or string.sub(redis.sha1hex(nonce or value), 1, 16)) ~= ARGV[2] then return {ARGV[1], 'GONE'} end
local left, t = redis.call('PTTL', KEYS[3]), redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if ARGV[4] ~= '1' then
  if not (nonce or over) then return {ARGV[1], 'GONE'} end
  if nonce then
    redis.call('SET', KEYS[3], 'revoked:' .. ARGV[2] .. ':' .. label .. ', ' .. ARGV[3], 'KEEPTTL')
  end
  local least = tonumber(ARGV[5])
  if left >= 0 and left < least then
    redis.call('PEXPIRE', KEYS[3], least)
    redis.pcall('ZADD', KEYS[1], now + least, ARGV[6])
    left = least
  end
  return {ARGV[1], 'REVOKED', left}
end
redis.call('DEL', KEYS[3])
redis.call('ZREM', KEYS[1], ARGV[6])
local waited = redis.pcall('ZSCORE', KEYS[2], ARGV[6])
if type(waited) == 'string' and tonumber(waited) > now then
  redis.call('DEL', KEYS[4])
  redis.pcall('RPUSH', KEYS[4], ARGV[1])
  redis.call('PEXPIRE', KEYS[4], 1000)
end
return {ARGV[1], 'REVOKED', 0}
