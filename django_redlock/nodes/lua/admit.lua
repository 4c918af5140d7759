-- Admit the node to voting, once its restart guard is over; run once per connection.
-- KEYS fences      ARGV nonce, guard, uptime, a random text ('': look, write nothing), of a server
-- that was promoted: the id of its data ('': it was not)
-- A node without ``epoch`` is new or was emptied; it gets one when ``guard`` milliseconds have
-- passed since a client first noticed. Not since its start: its clock may have been set since, and
-- then it counts too many. But a client that knows that the node is younger than that, since it was
-- started or its clock was set, lets the guard begin again; a second less is rounding.
-- A promoted server has a copy of its master's ``epoch`` and ``empty``, and may lack the last
-- grants. With another id than ``replid`` it counts as emptied now: '-' is the epoch of no
-- connection. The counters stay: those of the tokens never go back.
-- Returns nonce, ADMITTED, milliseconds left until it may be admitted (0: admitted; -1: who only
-- looks is the first to notice it), its epoch
local nonce, guard, uptime = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local looks, promoted = ARGV[4] == '', ARGV[5]
local kept = redis.call('HMGET', KEYS[1], 'epoch', 'empty', 'replid')
local copied = promoted ~= '' and kept[3] ~= promoted
if kept[1] and kept[1] ~= '-' and not copied then return {nonce, 'ADMITTED', 0, kept[1]} end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local noticed = not copied and tonumber(kept[2] or '-1') or -1
if looks and noticed < 0 then return {nonce, 'ADMITTED', -1, ''} end
local since = noticed
if since < 0 or since > now then since = now end
if now - uptime > since + 1000 then since = now - uptime end
if copied then redis.call('HSET', KEYS[1], 'epoch', '-', 'replid', promoted) end
if since ~= noticed and not looks then
  redis.call('HSET', KEYS[1], 'empty', string.format('%.0f', since))
end
if now - since < guard then return {nonce, 'ADMITTED', math.ceil(since + guard - now), ''} end
if not looks then redis.call('HSET', KEYS[1], 'epoch', ARGV[4]) end
return {nonce, 'ADMITTED', 0, ARGV[4]}
