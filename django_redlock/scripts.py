"""The Lua that runs on a node, one constant each, and what its answers mean.

All text goes out with ``EVAL`` (never ``EVALSHA``: measured at the same cost, and the case
"script unknown after a restart" does not exist). Every script is atomic on its node.

Keys of one deployment, all under one prefix (see ``protocol.Target``):

    {prefix}lock:{name}  STRING  ``nonce:g:label``, with an expiry
    {prefix}fences       HASH    1,024 counters (fields "0" to "1023"), ``epoch``, ``empty``
    {prefix}held         ZSET    names by the node's time of their expiry, in milliseconds

``g`` is the number this node gave with the grant; it never changes during a tenancy.

Every answer is a list that begins with the caller's nonce, echoed, and a word that no other
script uses, so that an answer which belongs to another question is recognised (an interrupted
read can leave a connection one reply out of step). That word is the script's own (GRANTED,
KEPT, FREED …; a third item carries the number or the data), or one of

    HELD   refused: milliseconds left (-1: no expiry), the holder's label (or "")
    GONE   refused: the key is missing or carries another nonce
    EMPTY  refused: the node lost its data and was not admitted since

Numbers: Lua prints large numbers as 1.79e+15, hence ``string.format('%.0f')``. A counter is
a double, exact up to 2^53 microseconds since 1970, which is the year 2255.
"""

from __future__ import annotations

from typing import Final

from .protocol import Command

# KEYS fences, held, lock × n     ARGV nonce, wish, slack, ttl, label, old, field × n, name × n,
#                                      epoch
# Takes all names or none. ``wish`` is the caller's wall clock and ``slack`` how far it may be
# ahead of this node's, in microseconds; ``ttl`` in milliseconds. With ``old`` empty each key
# must be missing; else each must carry exactly the nonce ``old`` (adoption).
# ``epoch`` is what the node had when the connection was opened: one that was emptied since, or
# got another's data, has none or another. The first write is one that a node which is out of
# memory refuses, so that it refuses all.
# Returns nonce, GRANTED, g | nonce, HELD, pttl, label | nonce, GONE | nonce, EMPTY
GRANT: Final = """\
local nonce, n, old = ARGV[1], #KEYS - 2, ARGV[6]
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[#ARGV] then return {nonce, 'EMPTY'} end
for i = 3, n + 2 do
  local value = redis.call('GET', KEYS[i])
  if old == '' then
    if value then
      local label = string.match(value, '^%x+:%d+:(.*)$') or string.match(value, '^rest::(.*)$')
      return {nonce, 'HELD', redis.call('PTTL', KEYS[i]), label or ''}
    end
  elseif not value or string.sub(value, 1, #old + 1) ~= old .. ':' then
    return {nonce, 'GONE'}
  end
end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local g = math.min(tonumber(ARGV[2]), now + tonumber(ARGV[3]))
for i = 7, n + 6 do
  g = math.max(g, (tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0')) + 1)
end
g = string.format('%.0f', g)
local due = string.format('%.0f', math.floor(now / 1000) + ARGV[4])
for i = 1, n do
  redis.call('HSET', KEYS[1], ARGV[6 + i], g)
  redis.call('SET', KEYS[i + 2], nonce .. ':' .. g .. ':' .. ARGV[5], 'PX', ARGV[4])
  redis.call('ZADD', KEYS[2], due, ARGV[6 + n + i])
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', math.floor(now / 1000)))
return {nonce, 'GRANTED', g}
"""

# KEYS fences, lock × n           ARGV nonce, token, field × n, g
# Lifts the counters to ``token`` if every key still carries this nonce *and this grant's* g.
# Returns nonce, RAISED, token | nonce, GONE
RAISE: Final = """\
local nonce, token, g, n = ARGV[1], tonumber(ARGV[2]), ARGV[#ARGV], #KEYS - 1
local mine = nonce .. ':' .. g .. ':'
if tonumber(g) > token then return {nonce, 'GONE'} end
for i = 2, n + 1 do
  local value = redis.call('GET', KEYS[i])
  if not value or string.sub(value, 1, #mine) ~= mine then return {nonce, 'GONE'} end
end
for i = 3, n + 2 do
  if tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0') < token then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[2])
  end
end
return {nonce, 'RAISED', ARGV[2]}
"""

# KEYS held, lock …               ARGV nonce, then for each tenancy: its nonce, ttl, n, name × n
# Prolongs many tenancies, each with all its keys or none. Never shortens, never creates. The
# index comes after the expiry and may be refused (out of memory): a lease is worth more.
# Returns nonce, KEPT, [1 prolonged | 0 a key is missing or carries another nonce] …
EXTEND: Final = """\
local kept, key, arg = {}, 2, 2
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
while arg <= #ARGV do
  local mine, ttl, n = ARGV[arg] .. ':', tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2])
  local all = 1
  for i = key, key + n - 1 do
    local value = redis.call('GET', KEYS[i])
    if not value or string.sub(value, 1, #mine) ~= mine then
      all = 0
      break
    end
  end
  for i = 0, all * n - 1 do
    local left = redis.call('PTTL', KEYS[key + i])
    if left >= 0 and left < ttl then
      redis.call('PEXPIRE', KEYS[key + i], ttl)
      redis.pcall('ZADD', KEYS[1], string.format('%.0f', now + ttl), ARGV[arg + 3 + i])
    end
  end
  kept[#kept + 1] = all
  key, arg = key + n, arg + 3 + n
end
return {ARGV[1], 'KEPT', kept}
"""

# KEYS held, lock × n             ARGV nonce, name × n
# Deletes each key that carries this nonce. Writes nothing else, so it works on a node that is
# out of memory.
# Returns nonce, FREED, number of keys deleted | nonce, GONE
RELEASE: Final = """\
local nonce, gone = ARGV[1], 0
for i = 2, #KEYS do
  local value = redis.call('GET', KEYS[i])
  if value and string.sub(value, 1, #nonce + 1) == nonce .. ':' then
    redis.call('DEL', KEYS[i])
    redis.call('ZREM', KEYS[1], ARGV[i])
    gone = gone + 1
  end
end
if gone == 0 then return {nonce, 'GONE'} end
return {nonce, 'FREED', gone}
"""

# KEYS held, lock × n             ARGV nonce, rest, name × n
# Like RELEASE, but the name stays taken for ``rest`` milliseconds more under a value that
# nobody owns (``rest::label`` has no nonce: it can be neither extended nor released).
# Returns nonce, RESTING, number of keys | nonce, GONE
REST: Final = """\
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
"""

# KEYS fences                     ARGV nonce, guard, uptime, a random text
# Asked once per connection. A node without ``epoch`` is new or was emptied; it gets one when
# ``guard`` milliseconds have passed since its start (if it is younger than the guard: nothing
# can have been granted in this life) or since somebody first noticed.
# Returns nonce, ADMITTED, milliseconds left until it may be admitted (0: admitted), its epoch
ADMIT: Final = """\
local nonce, guard, uptime = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if epoch then return {nonce, 'ADMITTED', 0, epoch} end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local since = tonumber(redis.call('HGET', KEYS[1], 'empty') or '-1')
if since < 0 or since > now then
  since = now
  if uptime >= 0 and uptime < guard then since = now - uptime end
  redis.call('HSET', KEYS[1], 'empty', string.format('%.0f', since))
end
if now - since < guard then return {nonce, 'ADMITTED', math.ceil(since + guard - now), ''} end
redis.call('HSET', KEYS[1], 'epoch', ARGV[4])
return {nonce, 'ADMITTED', 0, ARGV[4]}
"""

# KEYS held                       ARGV nonce, lock prefix, limit, name …
# Reads; writes nothing. Without names: those of the index that are due first, at most ``limit``.
# The nonce is the power to release, so it stays here: a digest names the owner.
# Returns nonce, FOUND, [name, owner digest, pttl, g, label] …, number of names looked at
SURVEY: Final = """\
local nonce, prefix, names = ARGV[1], ARGV[2], {}
if #ARGV > 3 then
  for i = 4, #ARGV do names[#names + 1] = ARGV[i] end
else
  local t = redis.call('TIME')
  local now = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
  names = redis.call('ZRANGEBYSCORE', KEYS[1], now, '+inf', 'LIMIT', 0, ARGV[3])
end
local found = {}
for _, name in ipairs(names) do
  local value = redis.pcall('GET', prefix .. name)
  if type(value) == 'table' then value = '' end
  if value then
    local owner, g, label = string.match(value, '^(%x+):(%d+):(.*)$')
    if not owner then
      owner, g, label = value, '', string.match(value, '^rest::(.*)$') or ''
    end
    found[#found + 1] = {
      name, string.sub(redis.sha1hex(owner), 1, 16),
      redis.call('PTTL', prefix .. name), g, label}
  end
end
return {nonce, 'FOUND', found, #names}
"""

TEXT: Final = {
    Command.GRANT: GRANT,
    Command.RAISE: RAISE,
    Command.EXTEND: EXTEND,
    Command.RELEASE: RELEASE,
    Command.REST: REST,
    Command.SURVEY: SURVEY,
}
