-- Advice on a vLLM job, told by the controller: JobSubmitPlugins=lua in slurm.conf, this file beside
-- it. The controller waits for it with every submission of a job that names vllm, at most 0.2 s;
-- where that is too much take cli_filter.lua, which waits on the user's side. Every job passes.

local URL = "http://127.0.0.1:8088"
-- A file with the line "Authorization: Bearer TOKEN", where the service asks for one.
local HEADER_FILE = "/etc/slurm/omnipilot.header"
local MOST_BYTES = 60000

local function plain(text)
  return (tostring(text or ""):gsub("[^%w:_.,=/-]", ""))
end

local function advise(job)
  local script = job.script or ""
  if not script:find("vllm", 1, true) then return end
  local name = os.tmpname()
  local file = assert(io.open(name, "w"))
  file:write(script:sub(1, MOST_BYTES))
  file:close()
  local header_file = io.open(HEADER_FILE, "r")
  local header = ""
  if header_file then
    header_file:close()
    header = " -H '@" .. HEADER_FILE .. "'"
  end
  local gres = plain(job.tres_per_node or job.tres_per_job or job.gres)
  local answer = io.popen(
    "curl -sf --max-time 0.2 --noproxy '*' -H 'Content-Type: text/plain'" .. header ..
    " --data-binary '@" .. name .. "' '" .. URL .. "/v1/review?gres=" .. gres ..
    "&partition=" .. plain(job.partition) .. "' 2>/dev/null")
  local text = answer:read(4000) or ""
  answer:close()
  os.remove(name)
  for line in text:gmatch("[^\n]+") do
    slurm.log_user("omnipilot: %s", (line:gsub("%c", "")))
  end
end

function slurm_job_submit(job, partitions, uid)
  pcall(advise, job)
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
