-- Describe held locks, marks of queued tasks or completion records, without changing anything.
-- KEYS index, waits, index …      ARGV nonce, key prefix, most, from | nonce, key prefix, 0, name …
-- One page of each index: names that are due at ``from`` (milliseconds) or later, the first due first,
-- at most ``most``; or the names. The next page begins where this one ends, with its last names again
-- if they are due in the same millisecond. The nonce is the power to release or to remove, so it stays
-- here: a digest names the owner. The key prefix ends with "lock:" or "mark:"; of a page, as its index
-- needs it.
-- Of a lock that was revoked g is 0, and the label has from whom and why; the label of a mark is the
-- id of its task. Of a name whose work was done once, g is when, in milliseconds. The last item is 1 if the name has a waiter, else 0; it needs no ``waits`` that can
-- be read.
-- Returns nonce, FOUND, and for each index [name, kind, owner digest, pttl, g, label, waited] …, where
-- the next page begins (0: there is none). The kind is "lock", "mark", "done" or "once".
local prefix, most = ARGV[2], tonumber(ARGV[3])
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local found = {ARGV[1], 'FOUND'}
local function describe(names, after)
  local marks, rows = string.find(prefix, 'mark:$'), {}
  for _, name in ipairs(names) do
    local value = redis.pcall('GET', prefix .. name)
    if type(value) == 'table' then value = '' end
    local kind, owner, g, label
    if value and marks then
      kind, g, owner, label = 'mark', '', string.match(value, '^(%x+):%d+:([%w_.-]+)$')
      if owner and #label <= 64 then owner = string.sub(redis.sha1hex(owner), 1, 16) else kind = nil end
    elseif value and value ~= 'next::' then
      local revoked, text = string.match(value, '^revoked:([0-9a-f]+):(.*)$')
      kind, owner, g, label = 'lock', string.match(value, '^(%x+):(%d+):(.*)$')
      if revoked and #revoked == 16 then -- else another client wrote it: no digest is told
        owner, g, label = revoked, '0', text
      else
        if not owner then
          g, label = string.match(value, '^once::(%d+):(.*)$')
          if g then
            kind = 'once'
          else
            if string.sub(value, 1, 6) == 'done::' then kind = 'done' end
            g, label = '', string.match(value, '^rest::(.*)$') or string.match(value, '^done::(.*)$') or ''
          end
        end
        owner = string.sub(redis.sha1hex(owner or value), 1, 16)
      end
    end
    if kind then
      local until_when = redis.pcall('ZSCORE', KEYS[2], name)
      local waited = type(until_when) == 'string' and tonumber(until_when) > now and 1 or 0
      rows[#rows + 1] = {name, kind, owner, redis.call('PTTL', prefix .. name), g, label, waited}
    end
  end
  found[#found + 1], found[#found + 2] = rows, after
end
if most == 0 then
  describe({unpack(ARGV, 4)}, 0)
  return found
end
local from = string.format('%.0f', math.max(now, tonumber(ARGV[4])))
for i, index in ipairs(KEYS) do
  if i ~= 2 then
    local due = redis.call('ZRANGEBYSCORE', index, from, '+inf', 'WITHSCORES', 'LIMIT', 0, most + 1)
    local names, after = {}, 0
    for j = 1, #due, 2 do
      if #names < most then
        names[#names + 1] = due[j]
      else
        after = math.min(tonumber(due[j + 1]), 2^53)
      end
    end
    prefix = string.sub(prefix, 1, -6) .. (string.find(index, 'marks$') and 'mark:' or 'lock:')
    describe(names, after)
  end
end
return found
