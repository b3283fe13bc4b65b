-- refuse.lua: records a refusal, and decides whether the caller is to announce it (rules:
-- LockTable::refuse). Does not read the lock.
-- Argument: refusal, notice {kind, fence or pause (ms) or neither, by} if it may have to be announced.
-- Replies: noted {announces}.
-- Why here: each of the last ones has the time of the server's clock, and they last as long as the
-- log. Why atomic: of many callers, one is to announce it.

local rest = string.sub(KEYS[2], #'dlock.:' + #RECORD + 1)
local refused, said = 'dlock.refused:' .. rest, 'dlock.said:' .. rest

-- The marks. What another program wrote is left out: not all of it could be written again.
local function read_marks()
  local marks = {}
  for kind, mark in pairs(object_at(said) or {}) do
    if type(mark) ~= 'table' then mark = {} end
    local at, by = ms_in(mark.at), type(mark.by) == 'string' and mark.by
    local fence, pause = number_in(mark.fence) and mark.fence, ms_in(mark.pause)
    if at and by and (fence or pause) then marks[kind] = { fence = fence or nil, pause = pause, at = at, by = by } end
  end
  return marks
end

-- The mark of this kind, if it is about what the notice is about.
local function mark_of(marks, kind, notice)
  local mark = marks[kind] or {}
  local pause = notice.pause and mark.pause
  local is_same = notice.fence and mark.fence == notice.fence or pause and math.abs(pause - notice.pause) < SAME_PAUSE
  return is_same and mark or nil
end

-- Whether the caller is to announce it, which is then recorded (rules: Notice::announce).
local function announces(notice)
  local announced = notice.kind ~= 'between'
  if not notice.fence and not notice.pause then return announced end
  local marks = read_marks()
  local mark = mark_of(marks, notice.kind, notice)
  if mark and mark.by ~= notice.by then
    local once = notice.kind ~= 'gave-up' and notice.kind ~= 'still-held'
    if once or math.abs(ms - mark.at) < ANNOUNCED_AGAIN then return false end
  end
  if notice.kind == 'too-long' and mark_of(marks, 'between', notice) then return false end
  marks[notice.kind] = { fence = notice.fence, pause = notice.pause, at = ms, by = notice.by }
  redis.call('SET', said, cjson.encode(marks), 'PX', HISTORY_KEPT)
  return announced
end

local kind = redis.call('TYPE', refused)
if kind.ok ~= 'list' and kind.ok ~= 'none' then redis.call('DEL', refused) end
arg.refusal.at = ms
redis.call('LPUSH', refused, cjson.encode(arg.refusal))
redis.call('LTRIM', refused, 0, LOG_KEPT - 1)
redis.call('PEXPIRE', refused, HISTORY_KEPT)
return answer('noted', { announces = arg.notice and announces(arg.notice) or false })
