-- patterns.lua: has a pattern pause the keys under a prefix that look like it, for a while; or ends that; or tells which do
-- (law: LockTable::change_pattern). Locks that were granted before have to be paused by themselves.
-- KEYS: the first is dlock.patterns:PREFIX, STRING, the patterns in force: JSON [[owner, since ms, until ms, pattern], …].
-- ARGV: the pattern ('' changes nothing), who does it (JSON; '' ends it), for how long ms.
-- Replies, in words that differ with the arrangement: {'was', now us, {pause, …}} · {'was-not', …} · {'full', …}: nothing was changed. A pause is as in KEYS.
-- Why atomic: two operators may each add one.

write_first()
local key, pattern, by, lasts = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local kept, what = {}, 'was-not'
local before = patterns_in(redis.pcall('GET', key))
for _, p in ipairs(before) do
  if p[4] == pattern then what = 'was' else kept[#kept + 1] = p end
end
if by ~= '' and #kept >= PATTERNS_MOST then
  kept, what = before, 'full'
elseif pattern ~= '' then
  if by ~= '' then kept[#kept + 1] = { by, int(ms), int(ms + lasts), pattern } end
  local last = 0
  for _, p in ipairs(kept) do last = math.max(last, pause_ends(p)) end
  if #kept == 0 then redis.call('DEL', key) else redis.call('SET', key, cjson.encode(kept), 'PXAT', int(last)) end
end
local shown = {}
for i, p in ipairs(kept) do shown[i] = cjson.encode(p) end
