"""The Lua that runs on a node, one constant each, and what its answers mean.

Whoever opens a connection loads them all; from then on their digests are sent (``EVALSHA``). A
node that has forgotten one (``SCRIPT FLUSH``) is sent the text. Every script is atomic on its node.

Keys of one deployment, all under one prefix (see ``protocol.Target``):

    {prefix}lock:{name}  STRING  ``nonce:g:label``, with an expiry
    {prefix}fences       HASH    1,024 counters (fields "0" to "1023"), ``epoch``, ``empty``
    {prefix}held         ZSET    names by the node's time of their expiry, in milliseconds
    {prefix}waits        ZSET    names that somebody waits for, by the time when that is old news
    {prefix}queue:{name} LIST    of one word, or none; who waits is blocked on it

``g`` is the number this node gave with the grant; it never changes during a tenancy. Two more
values can stand there, both without a nonce, so that nobody can extend, raise or release them:
``rest::label`` keeps a name taken for a while; ``next::`` keeps it for whoever is woken next.

Every answer is a list that begins with the caller's nonce, echoed, and a word that no other
script uses, so that an answer which belongs to another question is recognised (an interrupted
read can leave a connection one reply out of step). That word is the script's own (GRANTED,
KEPT, FREED …; a third item carries the number or the data), or one of

    HELD   refused: milliseconds left (-1: no expiry), the holder's label (or ""), a digest of
           the owner ("": reserved), which name
    GONE   refused: the key is missing or carries another nonce
    EMPTY  refused: the node lost its data and was not admitted since

Numbers: Lua prints large numbers as 1.79e+15, hence ``string.format('%.0f')``. A counter is
a double, exact up to 2^53 microseconds since 1970, which is the year 2255.
"""

from __future__ import annotations

import hashlib
from typing import Final

from .protocol import Command

# KEYS fences, held, waits, lock × n
# ARGV nonce, wish, slack, ttl, label, old, word, waits, field × n, name × n, epoch
# Takes all names or none. ``wish`` is the caller's wall clock and ``slack`` how far it may be
# ahead of this node's, in microseconds; ``ttl`` in milliseconds. With ``old`` and ``word`` empty
# each key must be missing. With ``old`` each must carry exactly that nonce (adoption). With
# ``word``, the nonce of a tenancy that is over, each must be missing, reserved or carry that.
# If refused and ``waits`` is not 0, notes for so many milliseconds that somebody waits.
# ``epoch`` is what the node had when the connection was opened: one that was emptied since, or
# got another's data, has none or another. The first write is one that a node which is out of
# memory refuses, so that it refuses all. Now and then the index is rid of what has expired.
# Returns nonce, GRANTED, g | nonce, HELD, pttl, label, owner, i | nonce, GONE | nonce, EMPTY
GRANT: Final = """\
local nonce, n, old, word = ARGV[1], #KEYS - 3, ARGV[6], ARGV[7]
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[#ARGV] then return {nonce, 'EMPTY'} end
for i = 1, n do
  local value = redis.call('GET', KEYS[i + 3])
  local taken
  if old ~= '' then
    if not value then return {nonce, 'GONE'} end
    taken = string.sub(value, 1, #old + 1) ~= old .. ':'
  else
    taken = value and (word == '' or
      (value ~= 'next::' and string.sub(value, 1, #word + 1) ~= word .. ':'))
  end
  if taken then
    if ARGV[8] ~= '0' then
      local t = redis.call('TIME')
      local due = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[8])
      redis.pcall('ZADD', KEYS[3], due, ARGV[8 + n + i])
    end
    local owner, label = string.match(value, '^(%x+):%d+:(.*)$')
    if value == 'next::' then
      owner = ''
    else
      label = label or string.match(value, '^rest::(.*)$')
      owner = string.sub(redis.sha1hex(owner or value), 1, 16)
    end
    return {nonce, 'HELD', redis.call('PTTL', KEYS[i + 3]), label or '', owner, i - 1}
  end
end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local g = math.min(tonumber(ARGV[2]), now + tonumber(ARGV[3]))
for i = 9, n + 8 do
  g = math.max(g, (tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0')) + 1)
end
g = string.format('%.0f', g)
local due = string.format('%.0f', math.floor(now / 1000) + ARGV[4])
for i = 1, n do
  redis.call('HSET', KEYS[1], ARGV[8 + i], g)
  redis.call('SET', KEYS[i + 3], nonce .. ':' .. g .. ':' .. ARGV[5], 'PX', ARGV[4])
  redis.call('ZADD', KEYS[2], due, ARGV[8 + n + i])
end
if t[2] % 64 == 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', math.floor(now / 1000)))
end
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

# KEYS held, waits, lock × n, queue × n
# ARGV nonce, reserve, wake, name × n
# Frees each key that carries this nonce. If somebody waits for the name and ``reserve`` is not
# 0, it is kept for whoever is woken next, for so many milliseconds. For the names with a "1"
# in ``wake``, a digit for each, if somebody waits, the nonce becomes the queue's only word,
# whether the key carried it or not.
# Needs no write that a node which is out of memory refuses, and no ``waits`` that can be read.
# Returns nonce, FREED, number of names for which somebody waits | nonce, GONE, the same
RELEASE: Final = """\
local nonce, reserve, n = ARGV[1], tonumber(ARGV[2]), (#KEYS - 2) / 2
local word, woken = 'GONE', 0
for i = 1, n do
  local lock, queue, name = KEYS[2 + i], KEYS[2 + n + i], ARGV[3 + i]
  local waited = redis.pcall('ZSCORE', KEYS[2], name)
  if type(waited) == 'string' then
    local t = redis.call('TIME')
    waited = tonumber(waited) > t[1] * 1000 + math.floor(t[2] / 1000)
    if not waited then redis.call('ZREM', KEYS[2], name) end
  else
    waited = false
  end
  local value = redis.call('GET', lock)
  if value and string.sub(value, 1, #nonce + 1) == nonce .. ':' then
    local kept = waited and reserve > 0 and redis.pcall('SET', lock, 'next::', 'PX', reserve)
    if not kept or kept.err then redis.call('DEL', lock) end
    redis.call('ZREM', KEYS[1], name)
    word = 'FREED'
  end
  if waited and string.sub(ARGV[3], i, i) == '1' then
    woken = woken + 1
    redis.call('DEL', queue)
    redis.pcall('RPUSH', queue, nonce)
    redis.call('PEXPIRE', queue, math.max(redis.call('PTTL', lock), 1000))
  end
end
return {nonce, word, woken}
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

# KEYS lock × n                   ARGV nonce, old
# Gives each key that carries this nonce back to ``old``, whose handle was not adopted after all. It
# keeps its expiry and this grant's number, which no answer to ``old`` has ever told.
# Returns nonce, RETURNED, number of keys | nonce, GONE
RETURN: Final = """\
local nonce, old, n = ARGV[1], ARGV[2], 0
for i = 1, #KEYS do
  local value = redis.call('GET', KEYS[i])
  if value and string.sub(value, 1, #nonce + 1) == nonce .. ':' then
    redis.call('SET', KEYS[i], old .. string.sub(value, #nonce + 1), 'KEEPTTL')
    n = n + 1
  end
end
if n == 0 then return {nonce, 'GONE'} end
return {nonce, 'RETURNED', n}
"""

# KEYS waits, lock                ARGV nonce, waits, name
# Notes for ``waits`` milliseconds that somebody waits, and tells how long the key will be there.
# Returns nonce, LOOKED, pttl (-1: no expiry, -2: no key)
LOOK: Final = """\
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.pcall('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
return {ARGV[1], 'LOOKED', redis.call('PTTL', KEYS[2])}
"""

# KEYS queue                      ARGV nonce
# Takes the word that nobody who waits has taken.
# Returns nonce, CLAIMED, the word or ""
CLAIM: Final = """\
return {ARGV[1], 'CLAIMED', redis.call('LPOP', KEYS[1]) or ''}
"""

# KEYS fences                     ARGV nonce, guard, uptime, a random text
# Asked once per connection. A node without ``epoch`` is new or was emptied; it gets one when
# ``guard`` milliseconds have passed since somebody first noticed. Not since its start: its clock
# may have been set since, and then it counts too many. But an asker who knows that it is younger
# than that, since it was started or its clock was set, lets all begin anew; a second less is
# rounding.
# Returns nonce, ADMITTED, milliseconds left until it may be admitted (0: admitted), its epoch
ADMIT: Final = """\
local nonce, guard, uptime = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if epoch then return {nonce, 'ADMITTED', 0, epoch} end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local noticed = tonumber(redis.call('HGET', KEYS[1], 'empty') or '-1')
local since = noticed
if since < 0 or since > now then since = now end
if now - uptime > since + 1000 then since = now - uptime end
if since ~= noticed then
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
  if value and value ~= 'next::' then
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

# KEYS held                       ARGV nonce, most, from
# One page of the index: names that are due at ``from`` (milliseconds) or later, the first due
# first, at most ``most``. The next page begins where this one ends, with its last names again
# if they are due in the same millisecond.
# Returns nonce, LISTED, [name …], where the next page begins (0: there is none)
INDEX: Final = """\
local t = redis.call('TIME')
local from = math.max(t[1] * 1000 + math.floor(t[2] / 1000), tonumber(ARGV[3]))
local most = tonumber(ARGV[2])
local found = redis.call('ZRANGEBYSCORE', KEYS[1], string.format('%.0f', from), '+inf',
  'WITHSCORES', 'LIMIT', 0, most + 1)
local names, after = {}, 0
for i = 1, #found, 2 do
  if #names < most then
    names[#names + 1] = found[i]
  else
    after = math.min(tonumber(found[i + 1]), 2^53)
  end
end
return {ARGV[1], 'LISTED', names, after}
"""

# KEYS held                       ARGV nonce
# What the node does when its memory is full.
# Returns nonce, MEMORY, [bytes that it may use (0: without a limit), policy, keys evicted]
MEMORY: Final = """\
local memory, stats = redis.call('INFO', 'memory'), redis.call('INFO', 'stats')
return {ARGV[1], 'MEMORY', {
  tonumber(string.match(memory, '\\nmaxmemory:(%d+)') or '0'),
  string.match(memory, '\\nmaxmemory_policy:([%w-]+)') or '',
  tonumber(string.match(stats, '\\nevicted_keys:(%d+)') or '0')}}
"""

TEXT: Final = {
    Command.GRANT: GRANT,
    Command.RAISE: RAISE,
    Command.EXTEND: EXTEND,
    Command.RELEASE: RELEASE,
    Command.REST: REST,
    Command.RETURN: RETURN,
    Command.LOOK: LOOK,
    Command.CLAIM: CLAIM,
    Command.SURVEY: SURVEY,
    Command.INDEX: INDEX,
    Command.MEMORY: MEMORY,
}

DIGEST: Final = {
    command: hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    for command, text in TEXT.items()
}
