-- Tell how long the name is still taken, and note that it has a waiter.
-- KEYS waits, lock                ARGV nonce, waits, name
-- The note holds for ``waits`` milliseconds.
-- Returns nonce, LOOKED, pttl (-1: no expiry, -2: no key)
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.pcall('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
return {ARGV[1], 'LOOKED', redis.call('PTTL', KEYS[2])}
