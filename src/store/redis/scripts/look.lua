-- look.lua: the second part of scripts that only read. Ends that no operation has recorded yet are
-- shown as if they were: in the holders, the log and the totals.

reads_all = true

-- Returns the last `ends` of the log; the totals, numbers as text; the live holds; the revoked
-- holds; how many holds are recorded; and when the last of those that the lock key confirms ends.
local function look(lock, ends)
  if lock['until'] and ms >= lock['until'] then lock.kind, lock['until'], lock.slots, lock.token = 'free' end
  local log = ends > 0 and redis.call('LRANGE', key_of('log', lock), 0, ends - 1) or {}
  local flat, stat = redis.pcall('HGETALL', lock.STAT), {}
  for i = 1, #flat, 2 do stat[flat[i]] = flat[i + 1] end
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
        if outcome == 'expired' then pause_after_expiry(lock, hold) end
        local counts, times = counted(hold, outcome)
        for field, n in pairs(counts) do stat[field] = int((number_in(stat[field]) or 0) + n) end
        for field, at in pairs(times) do stat[field] = int(at) end
      end
    else
      due = math.max(due or 0, due_of(hold))
      if lock.kind == 'exclusive' and ms >= hold['until'] then pause_after_expiry(lock, hold) end
      if hold.phase == 'revoked' then revoked[#revoked + 1] = one end
      if hold.phase == 'held' and not (lock.kind == 'exclusive' and ms >= hold['until']) then live[#live + 1] = one end
    end
  end
  if lock.kind == 'exclusive' and recorded == 0 then live = { { token = lock.token, hold = lock.holds[lock.token] } } end
  return log, stat, live, revoked, recorded, due
end
