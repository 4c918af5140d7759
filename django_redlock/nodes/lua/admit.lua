-- Admit the node to voting, once its restart guard is over; run once per connection.
-- KEYS fences                     ARGV nonce, guard, uptime, a random text ('': look, write nothing)
-- A node without ``epoch`` is new or was emptied; it gets one when ``guard`` milliseconds have
-- passed since a client first noticed. Not since its start: its clock may have been set since, and
-- then it counts too many. But a client that knows that the node is younger than that, since it was
-- started or its clock was set, lets the guard begin again; a second less is rounding.
-- Returns nonce, ADMITTED, milliseconds left until it may be admitted (0: admitted; -1: who only
-- looks is the first to notice it), its epoch
local nonce, guard, uptime = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local looks = ARGV[4] == ''
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if epoch then return {nonce, 'ADMITTED', 0, epoch} end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local noticed = tonumber(redis.call('HGET', KEYS[1], 'empty') or '-1')
if looks and noticed < 0 then return {nonce, 'ADMITTED', -1, ''} end
local since = noticed
if since < 0 or since > now then since = now end
if now - uptime > since + 1000 then since = now - uptime end
if since ~= noticed and not looks then
  redis.call('HSET', KEYS[1], 'empty', string.format('%.0f', since))
end
if now - since < guard then return {nonce, 'ADMITTED', math.ceil(since + guard - now), ''} end
if not looks then redis.call('HSET', KEYS[1], 'epoch', ARGV[4]) end
return {nonce, 'ADMITTED', 0, ARGV[4]}
