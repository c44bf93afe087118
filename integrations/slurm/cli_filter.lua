-- Advice on a vLLM job, shown by sbatch itself: CliFilterPlugins=cli_filter/lua in slurm.conf, this
-- file beside it. It runs on the user's side, has 0.2 s, and lets every job pass whatever happens.

local URL = os.getenv("OMNIPILOT_URL") or "http://127.0.0.1:8088"
-- A file with the line "Authorization: Bearer TOKEN", where the service asks for one.
local HEADER_FILE = os.getenv("OMNIPILOT_HEADER_FILE") or "/etc/slurm/omnipilot.header"
local MOST_BYTES = 60000

local function readable(path)
  local file = io.open(path, "r")
  if file then file:close() end
  return file ~= nil
end

local function plain(text)
  return (tostring(text or ""):gsub("[^%w:_.,=-]", ""))
end

-- The script of the job: what --wrap says, else the first word that is a readable file.
local function script_of(options)
  if options["wrap"] and options["wrap"] ~= "" then return options["wrap"] end
  for _, word in ipairs(options["argv"] or {}) do
    local file = io.open(word, "r")
    if file then
      local text = file:read(MOST_BYTES)
      file:close()
      return text or ""
    end
  end
  return ""
end

local function advise(options)
  local script = script_of(options)
  if not script:find("vllm", 1, true) then return end
  local name = os.tmpname()
  local file = assert(io.open(name, "w"))
  file:write(script:sub(1, MOST_BYTES))
  file:close()
  local header = readable(HEADER_FILE) and (" -H '@" .. HEADER_FILE .. "'") or ""
  local gres = plain(options["gres"] or options["gpus"] or options["gpus-per-node"])
  local answer = io.popen(
    "curl -sf --max-time 0.2 --noproxy '*' -H 'Content-Type: text/plain'" .. header ..
    " --data-binary '@" .. name .. "' '" .. URL .. "/v1/review?gres=" .. gres ..
    "&partition=" .. plain(options["partition"]) .. "' 2>/dev/null")
  local text = answer:read(4000) or ""
  answer:close()
  os.remove(name)
  for line in text:gmatch("[^\n]+") do
    slurm.log_info("omnipilot: %s", (line:gsub("%c", "")))
  end
end

function slurm_cli_setup_defaults(options, early_pass)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, pack_offset)
  pcall(advise, options)
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end
