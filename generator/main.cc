// SPDX-License-Identifier: Apache-2.0
//
// mla-gen: the command line.
#include <errno.h>
#include <string.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "generator/build.h"
#include "generator/bundle.h"
#include "generator/schema.h"
#include "manifest/fields.h"
#include "manifest/text.h"
#include "manifest/words.h"

namespace mla::generator {
namespace {

constexpr int kExitDone = 0;
constexpr int kExitFailed = 1;
constexpr int kExitRefused = 2;

constexpr char kFooter[] = R"(
Exit status
  0  done; for verify: nothing is wrong; for diff: no difference
  1  a compilation failed, a cubin is not what was asked for, verify found
     something wrong, or diff found differences
  2  an option, the matrix, a manifest or a cubin is invalid, or a file or tool
     is missing or cannot be read or written, stdout included

Examples
  mla-gen build --matrix manifest/matrix.json --out build/bundle
  mla-gen build --out build/bundle --arch sm_120f --filter block_scaled --jobs 4
  mla-gen list --arch sm_90a
  mla-gen show build/bundle
  mla-gen verify build/bundle
  mla-gen index build/bundle --name mla-decode --version 0.1.0)";

int refuse(const Status& status) {
  fprintf(stderr, "mla-gen: error: %s\n", status.message().c_str());
  return kExitRefused;
}

int list(const std::string& path, const Selection& selection, bool json) {
  Matrix matrix;
  Expansion expansion;
  if (Status status = read_matrix_file(path, &matrix); !status.ok()) return refuse(status);
  if (Status status = expand(matrix, selection, &expansion); !status.ok()) return refuse(status);
  if (json) {
    nlohmann::ordered_json configurations = nlohmann::ordered_json::array(), refusals = configurations;
    for (const Configuration& one : expansion.configurations) {
      nlohmann::ordered_json macros = nlohmann::ordered_json::object();
      for (const auto& [name, value] : one.macros) macros[name] = value;
      configurations.push_back({{"id", one.id},
                                {"target", one.target.name()},
                                {"symbol", one.symbol},
                                {"source", one.source},
                                {"macros", macros},
                                {"priority", one.priority}});
    }
    for (const Refusal& one : expansion.refusals)
      refusals.push_back({{"id", one.id}, {"reason", one.reason}});
    const nlohmann::ordered_json all = {{"configurations", configurations}, {"refused", refusals}};
    printf("%s\n", all.dump(2).c_str());
    return kExitDone;
  }
  for (const Configuration& one : expansion.configurations) {
    std::string macros;
    for (const auto& [name, value] : one.macros) macros += " " + name + "=" + value;
    printf("%s  %s%s\n", one.id.c_str(), one.source.c_str(), macros.c_str());
  }
  for (const Refusal& one : expansion.refusals)
    printf("refused %s: %s\n", one.id.c_str(), one.reason.c_str());
  printf("%zu configurations, %zu refused\n", expansion.configurations.size(), expansion.refusals.size());
  return kExitDone;
}

// Everything about one kernel, a field a line.
void show_kernel(const manifest::Kernel& kernel) {
  const auto line = [](const std::string& name, const std::string& value, const std::string& meaning) {
    printf("%-26s %-24s %s\n", name.c_str(), value.c_str(), meaning.c_str());
  };
  line("id", kernel.id, "");
  line("target", kernel.target.name(), "");
  line("symbol", kernel.symbol, "");
  line("file", kernel.file, "");
  line("size", std::to_string(kernel.size), "bytes of the file");
  line("sha256", kernel.sha256, "");
  line("min_driver", kernel.min_driver, "oldest driver");
  if (!kernel.unknown.empty()) line("unusable", kernel.unknown, "");
  for (const manifest::Field& field : cubin::kFields) {
    if (!manifest::applies(field, kernel.facts.kind)) continue;
    std::string name = manifest::json_pointer(field).substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    line(name, manifest::spell(field, manifest::get(kernel.facts, field)), field.meaning);
  }
  const uint32_t spills = kernel.resources.spill_bytes;
  line("resources.registers", std::to_string(kernel.resources.registers), "of a thread");
  line("resources.spill_bytes", spills == manifest::kSpillUnknown ? "?" : std::to_string(spills),
       "of a thread");
  line("resources.stack_bytes", std::to_string(kernel.resources.stack_bytes), "of a thread");
  line("resources.static_smem", std::to_string(kernel.resources.static_smem), "of a CTA, bytes");
}

int show(const std::string& dir, const std::string& id, bool json) {
  manifest::Manifest manifest;
  std::string text;
  if (Status status = read_bundle(dir, &manifest, &text); !status.ok()) return refuse(status);
  const auto kernel = std::find_if(manifest.kernels.begin(), manifest.kernels.end(),
                                   [&](const manifest::Kernel& one) { return one.id == id; });
  if (!id.empty() && kernel == manifest.kernels.end()) {
    return refuse(
        Status::invalid(dir + ": has no kernel \"" + id + "\"; mla-gen show " + dir + " lists them"));
  }
  if (json) {
    // The text as it is, with what this program does not know.
    const auto object = nlohmann::ordered_json::parse(text);
    const size_t index = static_cast<size_t>(kernel - manifest.kernels.begin());
    printf("%s\n", (id.empty() ? object : object["kernels"][index]).dump(2).c_str());
    return kExitDone;
  }
  if (!id.empty()) {
    show_kernel(*kernel);
    return kExitDone;
  }
  printf("%s %s, toolkit %s\nsource hash %s\n\n", manifest.name.c_str(), manifest.version.c_str(),
         manifest.toolkit.c_str(), manifest.source_hash.c_str());
  size_t width = 2;
  for (const manifest::Kernel& one : manifest.kernels) width = std::max(width, one.id.size());
  printf("%-*s  %-8s %-8s %9s %6s %6s %9s %8s %7s %8s %8s\n", static_cast<int>(width), "id", "kind", "target",
         "registers", "spills", "stack", "dyn. smem", "st. smem", "threads", "cluster", "bytes");
  for (const manifest::Kernel& one : manifest.kernels) {
    const uint32_t spills = one.resources.spill_bytes;
    if (!one.unknown.empty()) {
      printf("%-*s  unusable: %s\n", static_cast<int>(width), one.id.c_str(), one.unknown.c_str());
      continue;
    }
    printf("%-*s  %-8s %-8s %9u %6s %6u %9u %8u %7u %8u %8llu\n", static_cast<int>(width), one.id.c_str(),
           std::string(manifest::word_for(manifest::kKindWords, one.facts.kind)).c_str(),
           one.target.name().c_str(), one.resources.registers,
           spills == manifest::kSpillUnknown ? "?" : std::to_string(spills).c_str(),
           one.resources.stack_bytes, one.facts.dynamic_smem, one.resources.static_smem, one.facts.threads,
           one.facts.cluster_size, static_cast<unsigned long long>(one.size));
  }
  return kExitDone;
}

int verify(const std::string& dir) {
  manifest::Manifest manifest;
  if (Status status = read_bundle(dir, &manifest); !status.ok()) return refuse(status);
  const std::vector<std::string> problems = verify_bundle(dir);
  for (const std::string& problem : problems) fprintf(stderr, "mla-gen: error: %s\n", problem.c_str());
  if (!problems.empty()) return kExitFailed;
  printf("%s: %zu kernels, nothing wrong\n", dir.c_str(), manifest.kernels.size());
  return kExitDone;
}

int diff(const std::string& first, const std::string& second) {
  manifest::Manifest ignored;
  std::string a, b;
  if (Status status = read_bundle(first, &ignored, &a); !status.ok()) return refuse(status);
  if (Status status = read_bundle(second, &ignored, &b); !status.ok()) return refuse(status);
  const std::vector<std::string> lines = diff_manifests(a, b);
  for (const std::string& line : lines) printf("%s\n", line.c_str());
  return lines.empty() ? kExitDone : kExitFailed;
}

int index(const std::string& dir, const IndexOptions& options, const std::string& out) {
  manifest::Manifest manifest;
  if (Status status = index_bundle(dir, options, &manifest); !status.ok()) return refuse(status);
  const std::string text = manifest::write(manifest);
  if (out == "-") {
    printf("%s", text.c_str());
    return kExitDone;
  }
  const std::string path = out.empty() ? dir + "/" + std::string(manifest::kManifestFile) : out;
  if (Status status = write_file(path, text); !status.ok()) return refuse(status);
  printf("%s: %zu kernels\n", path.c_str(), manifest.kernels.size());
  return kExitDone;
}

int run(int argc, char** argv) {
  CLI::App app("mla-gen builds bundles of prebuilt MLA decode kernels and looks into them.", "mla-gen");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string(MLA_GEN_VERSION));

  BuildOptions build_options;
  std::string dir, second, id, out;
  bool json = false;
  IndexOptions index_options;

  const auto add_selection = [&](CLI::App* command) {
    command->add_option("--matrix", build_options.matrix, "Matrix of configurations")->capture_default_str();
    command
        ->add_option("--arch", build_options.selection.targets,
                     "Only these targets of the matrix, for instance sm_120f,sm_90a")
        ->delimiter(',')
        ->type_name("TARGET,...");
    command
        ->add_option("--filter", build_options.selection.filter,
                     "Only configurations in whose id this regular expression is found")
        ->type_name("REGEX");
  };

  CLI::App* build_command = app.add_subcommand("build", "Compile the matrix and write a bundle");
  add_selection(build_command);
  build_command->add_option("--out", build_options.out, "Folder of the bundle; replaced in one piece")
      ->required()
      ->type_name("DIR");
  build_command
      ->add_option("--source", build_options.source_dir, "Folder that the matrix's sources are relative to")
      ->capture_default_str()
      ->type_name("DIR");
  build_command
      ->add_option("--build-dir", build_options.build_dir, "Folder of intermediate files [<out>.build]")
      ->type_name("DIR");
  build_command
      ->add_option("--jobs,-j", build_options.jobs, "Compilations at a time [as many as Ninja likes]")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  build_command->add_option("--nvcc", build_options.nvcc, "CUDA compiler")
      ->capture_default_str()
      ->type_name("PATH");
  build_command->add_option("--ninja", build_options.ninja, "Ninja")
      ->capture_default_str()
      ->type_name("PATH");
  build_command
      ->add_option(
          "--ptx-out", build_options.ptx_out,
          "Also write the PTX of each cubin to DIR/<sha256 of the cubin>.ptx, for the emulated driver")
      ->type_name("DIR");
  build_command->add_option("--name", build_options.name, "Name of the bundle [the matrix's]");
  build_command->add_option("--bundle-version", build_options.version,
                            "Version of the bundle [the matrix's]");

  CLI::App* list_command =
      app.add_subcommand("list", "List the configurations of the matrix, and what it refuses and why");
  add_selection(list_command);
  list_command->add_flag("--json", json, "As JSON");

  const auto add_dir = [&](CLI::App* command) {
    command->add_option("dir", dir, "Folder of the bundle")->required();
  };
  CLI::App* show_command = app.add_subcommand("show", "Show what is in a bundle, or all about one kernel");
  add_dir(show_command);
  show_command->add_option("id", id, "Kernel to show");
  show_command->add_flag("--json", json, "As JSON");

  CLI::App* verify_command =
      app.add_subcommand("verify", "Check files, hashes, cubins and manifest of a bundle against each other");
  add_dir(verify_command);

  CLI::App* diff_command = app.add_subcommand("diff", "Compare the manifests of two bundles");
  add_dir(diff_command);
  diff_command->add_option("second", second, "Folder of the other bundle")->required();

  CLI::App* index_command = app.add_subcommand("index", "Rebuild manifest.json from the cubins alone");
  add_dir(index_command);
  const auto need_name = [](const std::string& text) {
    return manifest::is_name(text) ? "" : "expected 1 to 128 letters, digits and _ - . +";
  };
  const auto need_hash = [](const std::string& text) {
    return manifest::is_sha256(text) ? "" : "expected 64 lower-case hex digits";
  };
  index_command
      ->add_option("--name", index_options.name, "Name of the bundle [that of the manifest that is there]")
      ->check(need_name);
  index_command
      ->add_option("--version", index_options.version,
                   "Version of the bundle [that of the manifest that is there]")
      ->check(need_name);
  index_command
      ->add_option("--source-hash", index_options.source_hash,
                   "sha256 of the sources [that of the manifest that is there, else zeros]")
      ->check(need_hash);
  index_command->add_flag("--fresh", index_options.fresh, "Do not look at a manifest that is there");
  index_command->add_option("--out", out, "File to write, - for stdout [<dir>/manifest.json]")
      ->type_name("FILE");

  CLI::App* schema_command = app.add_subcommand(
      "schema", "Print the JSON Schema of manifest.json, as manifest/manifest.schema.json");
  bool markdown = false;
  schema_command->add_flag("--markdown", markdown,
                           "The table of a kernel's fields instead, as in docs/bundle.md");

  std::string commands;
  bool known = argc < 2 || argv[1][0] == '-';
  for (const CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    commands += (commands.empty() ? "" : ", ") + command->get_name();
    known = known || command->get_name() == argv[1];
  }
  if (!known) {
    return refuse(
        Status::invalid("there is no command " + json::quote(argv[1]) + "; expected one of " + commands));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return refuse(Status::invalid(std::string(error.what()) + "; see mla-gen --help"));
  }
  if (build_command->parsed()) {
    switch (build(build_options)) {
      case BuildResult::kDone:
        return kExitDone;
      case BuildResult::kFailed:
        return kExitFailed;
      case BuildResult::kRefused:
        return kExitRefused;
    }
  }
  if (list_command->parsed()) return list(build_options.matrix, build_options.selection, json);
  if (show_command->parsed()) return show(dir, id, json);
  if (verify_command->parsed()) return verify(dir);
  if (diff_command->parsed()) return diff(dir, second);
  if (schema_command->parsed()) {
    printf("%s", (markdown ? field_table() : schema_text()).c_str());
    return kExitDone;
  }
  return index(dir, index_options, out);
}

}  // namespace
}  // namespace mla::generator

int main(int argc, char** argv) {
  int code = mla::generator::kExitRefused;
  try {
    code = mla::generator::run(argc, argv);
  } catch (const std::exception& error) {
    fprintf(stderr, "mla-gen: error: %s\n", mla::safe_text(error.what(), mla::Status::kMaxMessage).c_str());
  }
  // What was printed must have arrived; CLI11 prints help through iostreams.
  errno = 0;
  if (!std::cout.flush() || fflush(stdout) != 0 || ferror(stdout) != 0) {
    fprintf(stderr, "mla-gen: error: stdout cannot be written: %s\n", strerror(errno != 0 ? errno : EIO));
    return mla::generator::kExitRefused;
  }
  return code;
}
