// TensorBoard's event files: records of protocol buffers, each with its length and checksums. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/system_files.h"

namespace cli {

// The Castagnoli polynomial, as in RFC 3720, appendix B.4.
std::uint32_t crc32c(std::string_view bytes);

// TFRecord: length, its checksum, data, its checksum. The checksums are masked.
std::string record(std::string_view data);

// What makes a file an event file. It comes first.
std::string version_event(double wall_time);
// TensorBoard's scalars are single precision.
std::string scalar_event(std::string_view tag, std::int64_t step, double value, double wall_time);

// A new event file in `folder`, which is made if it is missing. Each scalar is in the file when scalar() returns.
// Throws zero::Error, naming the path, when it cannot be written.
class EventFile {
 public:
  // `wall_time`: seconds since 1970.
  EventFile(const std::string& folder, double wall_time);
  explicit EventFile(const std::string& folder);  // now

  void scalar(std::string_view tag, std::int64_t step, double value, double wall_time);
  const std::string& path() const { return path_; }

 private:
  void write(std::string_view event);

  std::string path_;
  zero::Descriptor file_;
};

}  // namespace cli
