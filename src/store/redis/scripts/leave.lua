-- leave.lua: gives back everything that the token has (holds, places in queues), and records it as
-- released (rules: LockTable::leave).
-- Argument: token, outcome (how the hold ended: released, crashed, …; none if nothing ran), job (how
--        the job ended, if known), once_per (whether the lock was acquired with it), fence (of the
--        grant; a hold with another one is dropped; none: of any), pause {lasts (ms), reason} (if the
--        job has failed), prefix of the locks' names.
-- Replies: released {cooling (ms)} · dequeued · already · not-held.
-- Why atomic: compare and delete. The next waiter is granted the lock in the same script, so the
-- lock is never idle. The released token is refused from then on, so a late acquire changes nothing
-- (I4).

local token = arg.token
write_first()
local locks = named(token)
local spent
for _, lock in ipairs(locks) do
  local mark = redis.call('GET', spent_key(lock, token))
  if mark and spent ~= '1' then spent = mark end
  expire(lock)
end

local queued, released, cooling, news = false, false, 0, {}
for _, lock in ipairs(locks) do
  -- A confirmed holder no longer waits.
  local held = is_held_by(lock, token)
  if not (held and hold_of(lock, token).confirmed) and redis.call('DEL', waiter_key(lock, token)) == 1 then
    queued = true
    if redis.call('ZRANK', lock.QUEUE, token) == 0 then news[#news + 1] = lock end
    redis.call('ZREM', lock.QUEUE, token)
    lock.changed = true
  end
  local hold = hold_of(lock, token)
  if hold and not is_of_grant(hold, arg.fence) then
    drop_hold(lock, token)
  elseif held then
    local pause = is_logged(hold) and arg.pause
    if pause and pause_after(lock, hold, ms, pause.lasts, pause.reason) then write_pause(lock) end
    if arg.outcome then
      local kept = close(lock, token, arg.outcome, arg.job, arg.once_per)
      if kept > 0 then news[#news + 1] = lock end
      cooling = math.max(cooling, kept)
    else
      drop_hold(lock, token)
    end
    released = true
  elseif is_revoked_from(lock, token) then
    drop_hold(lock, token)
    released = true
  end
end

-- What ran under a hold did not wait in a queue.
local what = queued and not arg.fence and 'dequeued' or 'not-held'
if released then what = 'released' elseif spent then what = spent == '1' and 'already' or 'not-held' end
if queued and not released and not spent then tally(locks[1], { ['given-up'] = 1 }) end
if not spent or spent ~= '1' and released then
  -- One mark is enough to refuse the token. Each lock that was held gets one, because `watch`
  -- learns from it that the lock was used a moment ago.
  for i = 1, released and #locks or 1 do spend(locks[i], token, released and '1' or '0') end
end
grant_next(worklist(locks), token)
for _, lock in ipairs(news) do wake_head(lock) end
tell()
return answer(what, { cooling = cooling })
