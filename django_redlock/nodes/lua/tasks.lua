-- List tasks that wait, run or have finished, without changing anything.
-- KEYS index                      ARGV nonce, key prefix, most, from | nonce, key prefix, 0, name …
-- One page of the index: names that are due at ``from`` (milliseconds) or later, the first due first,
-- at most ``most``; or the names. The next page begins as one of ``index`` does. Keys with the prefix
-- are marks, or locks and records, which count if their label ends in ``(task):id``. A mark's name
-- begins with its task. The nonce, which is the power to release or remove, stays here.
-- Returns nonce, TASKS, [name, kind of value, task, id, pttl] …, where the next page begins (0: there
-- is none). The kind of a value is "mark", "lock" or "done".
local prefix, most = ARGV[2], tonumber(ARGV[3])
local kind = string.match(prefix, '(%a+):$') -- "mark" or "lock"
local names, after = {}, 0
if most == 0 then
  for i = 4, #ARGV do names[#names + 1] = ARGV[i] end
else
  local t = redis.call('TIME')
  local from = math.max(t[1] * 1000 + math.floor(t[2] / 1000), tonumber(ARGV[4]))
  local found = redis.call('ZRANGEBYSCORE', KEYS[1], string.format('%.0f', from), '+inf',
    'WITHSCORES', 'LIMIT', 0, most + 1)
  for i = 1, #found, 2 do
    if #names < most then
      names[#names + 1] = found[i]
    else
      after = math.min(tonumber(found[i + 1]), 2^53)
    end
  end
end
local rows = {}
for _, name in ipairs(names) do
  local value = redis.pcall('GET', prefix .. name)
  if type(value) ~= 'string' then value = '' end
  local is, task, id = kind, '', nil
  if kind == 'mark' then
    id = string.match(value, '^%x+:([%w_.-]+)$')
  else
    local label = string.match(value, '^%x+:%d+:(.*)$')
    if not label then
      is, label = 'done', string.match(value, '^done::(.*)$') or ''
    end
    task, id = string.match(label, '%(([%w_.-]+)%):([%w_.-]+)$')
  end
  if id and #id <= 64 then rows[#rows + 1] = {name, is, task, id, redis.call('PTTL', prefix .. name)} end
end
return {ARGV[1], 'TASKS', rows, after}
