// Reads rows of 64 terms with $readmemh, and writes them with the unit's two totals and its result; the columns of
// results that it leaves out are x.
module bench;
    parameter ROWS = 1;
    reg [1331:0] rows [0:ROWS-1];
    reg [1331:0] row;
    reg [511:0] a, b;
    reg [31:0] c;
    wire [31:0] first, result;
    integer i, k, file;
    step one (a[255:0], b[255:0], c, first);
    step two (a[511:256], b[511:256], first, result);
    initial begin
        $readmemh("vectors.mem", rows);
        file = $fopen("results.mem", "w");
        for (i = 0; i < ROWS; i = i + 1) begin
            row = rows[i];
            for (k = 0; k < 64; k = k + 1) begin
                a[8*k +: 8] = row[1327 - 8*k -: 8];
                b[8*k +: 8] = row[815 - 8*k -: 8];
            end
            c = row[303:272];
            // exponent, cut, sum, guard, round, sticky; total: 22 bits of E8M13, float32 without its low 10 bits
            #1 $fdisplay(file, "%h_%s_%h_%s_%h_%h", row[1331:272], {24{"x"}}, {2'b0, first[31:10]}, {24{"x"}},
                {2'b0, result[31:10]}, result);
        end
        $fclose(file);
    end
endmodule
