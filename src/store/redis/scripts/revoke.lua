-- revoke.lua: takes the lock away from all holders (rules: Record::revoke).
-- Argument: when ('safe' or 'now'), by (the operator), prefix of the lock's name.
-- Replies, what was there: free · cooling · holds {left (ms), holders} · already-revoked {left,
--        holders} · foreign {kind, left} (left alone) · foreign-deleted.
-- Why atomic: it acts on the holds that it shows, not on later ones.

local now = arg.when == 'now'
write_first()
local lock = named()[1]
expire(lock)

if lock.kind == 'foreign' then
  if now and lock.foreign_type == 'string' then
    free(lock)
    grant_next({ lock.rest })
    tell()
    return answer('foreign-deleted')
  end
  local value = foreign(lock)
  grant_next({ lock.rest })
  tell()
  return answer('foreign', value)
end

-- Whether a hold is shown and taken away; one that only a min-hold keeps is just ended.
local function is_live(hold)
  return hold.phase == 'held' and not (lock.kind == 'exclusive' and ms >= hold['until'])
end
local holds, live, revoked = all_holds(lock), {}, {}
for _, one in ipairs(holds) do
  lock.holds[one.token] = one.hold
  if is_live(one.hold) then live[#live + 1] = one elseif one.hold.phase == 'revoked' then revoked[#revoked + 1] = one end
end
if lock.kind == 'exclusive' and #holds == 0 then
  holds = { { token = lock.token, hold = lock.holds[lock.token] } }
  live = holds
end

local was, taken = lock.kind, {}
if was == 'exclusive' then was = #live > 0 and 'held' or 'cooling' end
if is_many(lock) then
  was = (#live > 0 or #holds == 0) and 'held' or #revoked > 0 and 'revoked' or 'cooling'
end
if was == 'held' then taken = live elseif was == 'revoked' then taken = revoked end
local holders = people(taken)

for _, one in ipairs(holds) do
  if one.hold.phase ~= 'revoked' and not is_live(one.hold) then finish(lock, one.token, 'expired') end
end
local kept
for _, one in ipairs(taken) do
  local phase, confirmed = one.hold.phase, one.hold.confirmed
  if phase == 'held' then
    finish(lock, one.token, 'forced', nil, arg.by)
    -- Its next renewal tells it that the lock is lost.
    wake(lock.rest, one.token, 'holder')
  end
  -- Under a grant that was never confirmed, or after the lease, no job runs: the next grant need
  -- not wait.
  if now or not confirmed or ms >= one.hold['until'] then
    if phase == 'revoked' then erase(lock, one.token, one.hold) end
    spend(lock, one.token, '0')
  else
    one.hold.phase = 'revoked'
    if not is_many(lock) then lock.kind, lock.token = 'revoked', nil end
    save(lock, one.token, one.hold)
  end
end
for _, one in ipairs(revoked) do
  if now and was == 'held' then
    erase(lock, one.token, one.hold)
    spend(lock, one.token, '0')
  end
end
if not now then
  for _, one in ipairs(all_holds(lock)) do
    if one.hold.phase == 'revoked' then kept = math.max(kept or 0, one.hold['until']) end
  end
end

local remains = 0
if kept then
  remains = left(kept)
  if lock.kind == 'revoked' then mark(lock, 'revoked', kept) end
elseif not now and (was == 'revoked' or was == 'held' and #taken == 0) and lock['until'] then
  -- The server has lost the holds; only the key itself tells for how long.
  remains = left(lock['until'])
  lock.slots = nil
  mark(lock, 'revoked', lock['until'])
elseif lock.kind ~= 'free' then
  free(lock)
end
grant_next({ lock.rest })
if kept then wake_head(lock) end
tell()
local what = was
if was == 'held' and #live > 0 then what = 'holds' elseif was == 'held' or was == 'revoked' then what = 'already-revoked' end
return answer(what, { left = remains, holders = holders })
