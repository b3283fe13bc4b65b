-- look.lua: the second part of scripts that only read. Ends that no operation has recorded yet are
-- shown as if they were: in the holders, the log and the totals.

local function last_success(lock)
  local s = success_of(lock)
  return s and { s.owner, s.fence, int(s.since), int(s.ended) } or {}
end

reads_all = true

-- Returns the last `ends` of the log; the totals, as fields and numbers; the live holds; the
-- revoked holds; how many holds are recorded; and when the last of those that the lock key confirms
-- ends. A field of the totals may come more than once, and then they add up (times: the last one
-- counts).
local function look(lock, ends)
  if lock['until'] and ms >= lock['until'] then lock.kind, lock['until'], lock.slots, lock.token = 'free' end
  local log = ends > 0 and redis.call('LRANGE', key_of('log', lock), 0, ends - 1) or {}
  local stat = redis.pcall('HGETALL', lock.STAT)
  if stat.err then stat = {} end
  local many, live, revoked, recorded, due = is_many(lock), {}, {}, 0, nil
  for _, one in ipairs(lock.all) do
    local hold, borne_out = one.hold, false
    if lock.kind == 'exclusive' then
      borne_out = one.token == lock.token
    elseif lock.kind == 'revoked' then
      borne_out = hold.phase == 'revoked'
    elseif many then
      borne_out = ms < due_of(hold)
    end
    recorded = recorded + 1
    if not borne_out then
      if is_logged(hold) then
        local outcome = outcome_of(hold)
        table.insert(log, 1, entry(hold, outcome))
        for _, fields in ipairs({ counted(hold, outcome) }) do
          for field, n in pairs(fields) do
            stat[#stat + 1] = field
            stat[#stat + 1] = int(n)
          end
        end
      end
    else
      due = math.max(due or 0, due_of(hold))
      if hold.phase == 'revoked' then revoked[#revoked + 1] = one end
      if hold.phase == 'held' and not (lock.kind == 'exclusive' and ms >= hold['until']) then live[#live + 1] = one end
    end
  end
  if lock.kind == 'exclusive' and recorded == 0 then live = { { token = lock.token, hold = lock.holds[lock.token] } } end
  return log, stat, live, revoked, recorded, due
end
