import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/** Tools of Kafka on demand: a line of JSON in (name, arguments, stdin), one out (code, out, err). */
final class ToolServer {
    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out; // before Tool takes it
        BufferedReader asked =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ObjectMapper json = new ObjectMapper();
        for (String line = asked.readLine(); line != null; line = asked.readLine()) {
            JsonNode call = json.readTree(line);
            String[] arguments = json.convertValue(call.get("arguments"), String[].class);
            Tool.Result done =
                Tool.runWith(call.get("stdin").asText(), call.get("name").asText(), arguments);
            answers.println(json.writeValueAsString(
                Map.of("code", done.code(), "out", done.out(), "err", done.err())));
            answers.flush();
        }
        Runtime.getRuntime().halt(0); // some tools leave threads behind
    }
}
