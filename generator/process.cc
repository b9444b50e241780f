// SPDX-License-Identifier: Apache-2.0
#include "generator/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace mla::generator {

Status run_process(const std::vector<std::string>& argv, const std::string& cwd, std::string* output,
                   int* exit_code) {
  int ends[2] = {-1, -1};
  int trouble[2] = {-1, -1};  // closed by a successful exec, else the child's errno
  if ((output != nullptr && pipe2(ends, O_CLOEXEC) != 0) || pipe2(trouble, O_CLOEXEC) != 0)
    return Status::io(std::string("pipe: ") + strerror(errno));
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);  // it died before the line above
    const bool ready = (output == nullptr || (dup2(ends[1], 1) >= 0 && dup2(ends[1], 2) >= 0)) &&
                       (cwd.empty() || chdir(cwd.c_str()) == 0);
    if (ready) execvp(words[0], words.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t told = write(trouble[1], &error, sizeof(error));
    _exit(127);
  }
  int error = child < 0 ? errno : 0;
  if (ends[1] >= 0) close(ends[1]);
  close(trouble[1]);
  ssize_t told = 0;
  do {
    told = child < 0 ? 0 : read(trouble[0], &error, sizeof(error));
  } while (told < 0 && errno == EINTR);
  close(trouble[0]);
  if (error != 0) {
    if (ends[0] >= 0) close(ends[0]);
    if (child > 0) waitpid(child, nullptr, 0);
    return Status::io(argv[0] + ": cannot be run" + (cwd.empty() ? "" : " in " + cwd) + ": " +
                      strerror(error));
  }
  if (output != nullptr) {
    output->clear();
    char buffer[4096];
    while (true) {
      const ssize_t got = read(ends[0], buffer, sizeof(buffer));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      output->append(buffer, static_cast<size_t>(got));
    }
    close(ends[0]);
  }
  int state = 0;
  while (waitpid(child, &state, 0) < 0) {
    if (errno != EINTR) return Status::io(argv[0] + ": waitpid: " + strerror(errno));
  }
  *exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  return {};
}

std::string shell_quote(const std::string& text) {
  if (!text.empty() && text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                              "0123456789_-./=,:+") == std::string::npos) {
    return text;
  }
  std::string quoted = "'";
  for (char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

}  // namespace mla::generator
