-- heed.lua: what a script that grants a lock to whoever asks starts with besides: a lock that was never granted may be one of
-- which nobody knew when a pattern was said that means it. From then on its pause is its own. Of all others whoever says a
-- pattern finds the records. The twin of LockTable::heed_patterns.

-- Character by character, as *?[] are no part of one.
local function characters(text)
  local list = {}
  for c in string.gmatch(text, '[%z\1-\127\192-\255][\128-\191]*') do list[#list + 1] = c end
  return list
end

-- Whether a key looks like a pattern. Only the last * that was met is gone back to, so this takes no longer than the
-- product of both lengths.
local function looks_like(key, pattern)
  key, pattern = characters(key), characters(pattern)
  local k, p, star, from = 1, 1, nil, nil
  while key[k] do
    if pattern[p] == '*' then
      star, from, p = p, k, p + 1
    elseif pattern[p] == '?' or pattern[p] == key[k] then
      k, p = k + 1, p + 1
    elseif star then
      from = from + 1
      k, p = from, star + 1
    else
      return false
    end
  end
  while pattern[p] == '*' do p = p + 1 end
  return not pattern[p]
end

-- The patterns: as the caller knows them, or as they lie here. Nothing where they lie on another node of a cluster.
local function read_patterns(prefix, told)
  local json = told
  if json == '' then json = redis.pcall('GET', 'dlock.patterns:' .. prefix) end
  if type(json) == 'table' then
    -- Another type is somebody else's; a right that is missing must not pass for no pause.
    if string.find(json.err, 'WRONGTYPE', 1, true) then return {} end
    if string.find(json.err, 'NOPERM', 1, true) or string.find(json.err, 'ACL failure', 1, true) then
      redis.call('GET', 'dlock.patterns:' .. prefix)
    end
    return nil
  end
  return patterns_in(json)
end

-- Whether the patterns are heeded. Where they are not, the caller has to bring them along. Until then the fence shows that
-- somebody asks for the lock: so either whoever says a pattern finds the lock, or the caller finds the pattern.
local function heed(locks, prefix, told)
  local patterns
  for _, lock in ipairs(locks) do
    if last_fence(lock) == 0 and not pause_of(lock) then
      patterns = patterns or read_patterns(prefix, told)
      if not patterns then
        write_fence(lock, 0)
        return false
      end
      local longest, ends
      for _, p in ipairs(patterns) do
        local due = pause_ends(p)
        if (not ends or due >= ends) and looks_like(string.sub(lock.L, #prefix + 1), p[4]) then longest, ends = p, due end
      end
      if longest then write_pause(lock, { longest[1], longest[2], longest[3], longest[4] }, ends) end
    end
  end
  return true
end
