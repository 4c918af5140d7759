-- KEYS waits, lock                ARGV nonce, waits, name
-- Notes for ``waits`` milliseconds that somebody waits, and tells how long the key will be there.
-- Returns nonce, LOOKED, pttl (-1: no expiry, -2: no key)
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.pcall('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
return {ARGV[1], 'LOOKED', redis.call('PTTL', KEYS[2])}
