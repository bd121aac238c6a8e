# Reports and what shows them, without LibTorch: tables, JSON, the HTML page, the trace, TensorBoard's files.
find_package(nlohmann_json REQUIRED)

set(page_sources report_page.html report_page.css report_page_values.js report_page_charts.js report_page_plots.js
                 report_page.js)
list(TRANSFORM page_sources PREPEND "${PROJECT_SOURCE_DIR}/cli/page/")
set(page_cpp "${PROJECT_BINARY_DIR}/report_template.cpp")
add_custom_command(
  OUTPUT "${page_cpp}"
  COMMAND ${CMAKE_COMMAND} "-DFOLDER=${PROJECT_SOURCE_DIR}/cli/page" "-DOUTPUT=${page_cpp}" -P
          "${PROJECT_SOURCE_DIR}/cmake/EmbedPage.cmake"
  DEPENDS ${page_sources} "${PROJECT_SOURCE_DIR}/cmake/EmbedPage.cmake"
  COMMENT "Embedding the report's page"
  VERBATIM)

zero_glob(report_sources cli/report/*.cpp cli/page/*.cpp)
add_library(zero_report STATIC ${report_sources} "${page_cpp}")
zero_compile(zero_report)
set_target_properties(zero_report PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories(zero_report PRIVATE "${PROJECT_SOURCE_DIR}")
target_link_libraries(zero_report PUBLIC nlohmann_json::nlohmann_json PRIVATE zero_model_sizes)
