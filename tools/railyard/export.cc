/// `railyard export`: the telemetry of this host's processes for other software.
#include <arpa/inet.h>
#include <errno.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>

#include "base/fd.hpp"
#include "commands.hpp"
#include "export_text.hpp"
#include "text.hpp"

namespace railyard::tool {
namespace {

struct ExportOptions {
  HostOptions host;
  bool prometheus = false;
  std::string output = "-";
  int port = -1;
  std::string address = "127.0.0.1";
};

constexpr const char* kExportFooter = R"(Examples:
  railyard export --prometheus                    all processes of this host, once
  railyard export --prometheus --listen 9464      for a Prometheus that asks again and again)";

volatile sig_atomic_t export_ended = 0;

constexpr int kClientTimeout = 2000;  ///< milliseconds for a request to come and its answer to go
constexpr std::size_t kMostRequest = 8192;

Result<Fd> listen_on(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int failure = ::getaddrinfo(address.c_str(), fmt::format("{}", port).c_str(), &hints, &found); failure != 0)
    return Error(Status::invalid, fmt::format("--address {}: {}", address, ::gai_strerror(failure)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  Fd listener(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!listener || ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(listener.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(listener.get(), 16) != 0) {
    return Error(Status::io, fmt::format("{} port {}: {}", address, port, std::strerror(errno)));
  }
  return listener;
}

int port_of(const Fd& listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

bool ready(int socket, short event) {
  pollfd wait{socket, event, 0};
  return ::poll(&wait, 1, kClientTimeout) > 0;
}

/// One request, one answer: whoever is slow is dropped, since others wait.
void answer(const Fd& client, const HostOptions& options) {
  std::string request;
  char bytes[1024];
  while (request.find("\r\n\r\n") == std::string::npos) {
    if (request.size() > kMostRequest || !ready(client.get(), POLLIN)) return;
    const ssize_t got = ::recv(client.get(), bytes, sizeof bytes, 0);
    if (got <= 0) return;
    request.append(bytes, static_cast<std::size_t>(got));
  }
  std::string status = "200 OK";
  std::string body;
  if (request.starts_with("GET /metrics ") || request.starts_with("GET / ")) {
    auto host = look_at_host(options);
    if (host) {
      body = prometheus_text(*host);
    } else {
      status = "500 Internal Server Error";
      body = host.error().text() + "\n";
    }
  } else {
    status = request.starts_with("GET ") ? "404 Not Found" : "405 Method Not Allowed";
    body = "GET /metrics\n";
  }
  const std::string all = fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: "
      "close\r\n\r\n{}",
      status, body.size(), body);
  for (std::size_t sent = 0; sent < all.size();) {
    if (!ready(client.get(), POLLOUT)) return;
    const ssize_t went = ::send(client.get(), all.data() + sent, all.size() - sent, MSG_NOSIGNAL);
    if (went <= 0) return;
    sent += static_cast<std::size_t>(went);
  }
}

int serve(const ExportOptions& options) {
  auto listener = listen_on(options.address, options.port);
  if (!listener) return report_error("export", listener.error());
  struct sigaction end {};
  end.sa_handler = [](int) { export_ended = 1; };
  for (const int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &end, nullptr);
  fmt::print("metrics at http://{}:{}/metrics\n", options.address, port_of(*listener));
  std::fflush(stdout);
  while (export_ended == 0) {
    const Fd client(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (client) answer(client, options.host);
  }
  return kExitOk;
}

int run_export(const ExportOptions& options) {
  if (options.port >= 0) return serve(options);
  auto host = look_at_host(options.host);
  if (!host) return report_error("export", host.error());
  if (auto written = write_text(options.output, prometheus_text(*host)); !written)
    return report_error("export", written.error());
  return kExitOk;
}

}  // namespace

void add_export_command(CLI::App& app, int& exit_code) {
  auto line = std::make_shared<ExportOptions>();
  CLI::App* const command = app.add_subcommand("export", "Telemetry of this host's processes for other software");
  command->footer(kExportFooter);
  command->add_flag("--prometheus", line->prometheus, "In the text format of Prometheus")->required();
  auto* const port = command->add_option("--listen", line->port, "Serve it at http://ADDRESS:PORT/metrics; 0: any port")
                         ->type_name("PORT")
                         ->check(CLI::Range(0, 65535));
  command->add_option("--address", line->address, "Where to listen; beyond this host anybody can read it")
      ->needs(port)
      ->capture_default_str();
  command->add_option("--output", line->output, "Write it once to FILE; -: the standard output")
      ->type_name("FILE")
      ->excludes(port);
  command->add_option("--pid", line->host.pid, "Only this process")->check(CLI::PositiveNumber);
  command->add_option("--file", line->host.file, "This telemetry file alone")->type_name("FILE");
  command->add_option("--directory", line->host.directory, "Look for files in DIR alone")->type_name("DIR");
  command->callback([line, &exit_code] { exit_code = run_export(*line); });
}

}  // namespace railyard::tool
