#include "persist/json_events.h"

namespace zero {

void JsonEvents::read(std::string_view text) {
  // The parser takes a zero for the end, whatever comes behind it.
  if (const auto zero = text.find('\0'); zero != std::string_view::npos) fail_at(zero);
  nlohmann::json::sax_parse(text.begin(), text.end(), static_cast<nlohmann::json_sax<nlohmann::json>*>(this));
}

}  // namespace zero
